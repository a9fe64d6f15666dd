"""What the samples are: graphs, molecules, strings and images, and the conversions between classes and these objects."""
