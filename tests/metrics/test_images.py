"""Images as samples, and the recipe, the bundled policy and the files of image policies."""

from __future__ import annotations

import math
import re
import struct
import zlib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import yaml

from discrete_grpo.core.rollout import Reward
from discrete_grpo.core.scoring import score_samples
from discrete_grpo.domains.images import Image, contact_sheet, png, stack
from discrete_grpo.metrics import images as images_metrics
from discrete_grpo.runs.checkpoint import load_metadata, read_policy
from discrete_grpo.runs.report.images import render_image
from discrete_grpo.training.config import GRPOConfig, PretrainConfig
from discrete_grpo.training.trainer import GRPOTrainer

BUNDLED = Path(__file__).parents[2] / "discrete_grpo" / "bundled"
PRESETS = Path(__file__).parents[2] / "discrete_grpo" / "cli" / "presets"
SVG = "{http://www.w3.org/2000/svg}"


# -- one image


def picture(height: int = 3, width: int = 5, seed: int = 0) -> Image:
    levels = torch.randint(0, 256, (height * width,), generator=torch.Generator().manual_seed(seed))
    return Image(height, width, bytes(levels.tolist()))


def test_an_image_survives_its_text_and_its_tensor() -> None:
    image = picture()
    assert Image.parse(str(image)) == image
    assert Image.of(image.tensor()) == image
    assert len({image, picture(), picture(seed=1)}) == 2
    assert Image.of(torch.tensor([[-1.0, 0.5, 2.0]])).levels == bytes([0, 128, 255])
    assert torch.equal(stack([image, image])[1], image.tensor())


@pytest.mark.parametrize("text", ["", "CCO", "2x2:00", "2x2:00ff80", "0x1:", "2x2:00FF8000", "2x2:00ff8000 "])
def test_what_is_no_image_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(text|levels|height|width): "):
        Image.parse(text)
    assert render_image(text) is None


def test_images_of_one_size_are_stacked() -> None:
    with pytest.raises(ValueError, match=r"images: 2 of sizes \[\(1, 2\), \(2, 1\)\], expected"):
        stack([picture(1, 2), picture(2, 1)])
    with pytest.raises(ValueError, match="images: 0 of sizes"):
        stack([])


def test_a_png_holds_the_levels() -> None:
    image = picture()
    data = png(image)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        chunks[name], at = body, at + 12 + length
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (5, 3, 8, 0, 0, 0, 0)
    rows = zlib.decompress(chunks[b"IDAT"])
    assert b"".join(rows[k * 6 + 1 : k * 6 + 6] for k in range(3)) == image.levels


def test_a_sheet_shows_every_image_in_its_place() -> None:
    images = [picture(seed=k) for k in range(3)]
    sheet = contact_sheet(images, columns=2, scale=2).tensor()
    assert sheet.shape == (2 * (2 * 4 + 1), 2 * (2 * 6 + 1))
    for k, image in enumerate(images):
        top, left = k // 2 * 4 + 1, k % 2 * 6 + 1
        shown = sheet[::2, ::2][top : top + 3, left : left + 5]
        assert torch.equal(shown, image.tensor())
    with pytest.raises(ValueError, match="columns: 0, expected at least 1"):
        contact_sheet(images, 0, 2)


def test_the_drawing_paints_every_pixel_once() -> None:
    image = Image(2, 3, bytes([7, 7, 255, 0, 7, 255]))
    root = ElementTree.fromstring(str(render_image(str(image))))
    painted: dict[tuple[int, int], int] = {}
    for path in root.iter(f"{SVG}path"):
        level = int(path.attrib["fill"][1:3], 16)
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)v1H\d+z", path.attrib["d"]):
            for k in range(int(width)):
                assert (int(y), int(x) + k) not in painted
                painted[int(y), int(x) + k] = level
    assert [painted[y, x] for y in range(2) for x in range(3)] == list(image.levels)
    assert "id=" not in str(render_image(str(image)))


# -- the recipe


def tiny(folder: Path, steps: int = 4):  # type: ignore[no-untyped-def]
    from discrete_grpo.recipes.pretraining.digits import PretrainDigitsRecipe

    settings = PretrainConfig(max_steps=steps, batch_size=32, warmup_steps=1, save_steps=2, log_steps=2)
    return PretrainDigitsRecipe(
        output_dir=str(folder),
        codes=8,
        layers=1,
        heads=2,
        width=16,
        autoencoder=settings,
        classifier=settings,
        pretrain=settings,
        evaluation_samples=10,
    )


def test_the_recipe_makes_a_policy_and_a_classifier_and_resumes(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from discrete_grpo.recipes.pretraining.digits import image_columns, run_pretrain_digits
    from discrete_grpo.recipes.sample import sample
    from discrete_grpo.rewards.images import ClassifierProbability

    folder = run_pretrain_digits(tiny(tmp_path / "run"))
    metadata = load_metadata(folder)
    assert metadata["kind"] == "images"
    assert metadata["data"]["images"] == 1438
    assert "CC BY 4.0" in metadata["data"]["licence"]
    policy = read_policy(folder)
    samples = sample(policy, 20, columns=image_columns())
    assert samples == sample(policy, 20, columns=image_columns(), batch_size=256)
    assert all(s is None or (s.height, s.width) == (8, 8) for s in samples)
    assert len(ClassifierProbability(str(tmp_path / "run" / "classifier"))(samples, label=["0"] * 20)) == 20
    run_pretrain_digits(tiny(tmp_path / "half", steps=2))
    longer = run_pretrain_digits(tiny(tmp_path / "half"), resume=True)
    assert load_metadata(longer)["pretraining_steps"] == 4


def test_sampling_is_checked() -> None:
    from discrete_grpo.recipes.sample import sample

    with pytest.raises(ValueError, match="n: 0, expected at least 1"):
        sample(None, 0)
    with pytest.raises(ValueError, match="columns: no conditions"):
        sample(None, 1, columns=[])


# -- what comes with the package


def test_the_bundled_policy_draws_digits_of_their_class() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("skimage")
    from discrete_grpo.recipes.pretraining.digits import image_columns
    from discrete_grpo.recipes.sample import sample
    from discrete_grpo.rewards.images import ClassifierProbability, SSIMToClassMean

    policy, columns = read_policy(BUNDLED / "digits"), image_columns()
    samples = sample(policy, 100, seed=1, columns=columns)
    labels = [columns[k % 10]["label"] for k in range(100)]
    scores = score_samples([SSIMToClassMean(), ClassifierProbability()], samples, {"label": labels}).mean(0)
    assert sum(s is not None for s in samples) >= 98
    assert float(scores[0]) > 0.75
    assert float(scores[1]) > 0.9
    size = sum(f.stat().st_size for name in ("digits", "digits-classifier") for f in (BUNDLED / name).iterdir())
    assert size < 2_000_000
    assert load_metadata(BUNDLED / "digits-classifier")["kind"] == "classifier"


def test_the_classifier_knows_images_it_has_not_seen() -> None:
    pytest.importorskip("sklearn")
    from discrete_grpo.datasets.digits import load_digits

    data = load_digits("test")
    found = read_policy(BUNDLED / "digits-classifier")(data.pixels).argmax(-1)
    assert float((found == data.labels).double().mean()) > 0.97


@pytest.mark.slow
def test_a_few_updates_raise_the_sum_of_three_rewards() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("skimage")
    from discrete_grpo.recipes.pretraining.digits import image_columns
    from discrete_grpo.rewards.images import ClassifierProbability, InkAmount, SSIMToClassMean

    settings = yaml.safe_load((PRESETS / "digits.yaml").read_text())
    columns = settings["columns"]
    assert columns == image_columns()
    grpo = settings["grpo"] | {"max_steps": 8, "reward_weights": tuple(settings["grpo"]["reward_weights"])}
    ink = InkAmount(**settings["reward"][2]["init_args"])
    rewards: list[Reward] = [SSIMToClassMean(), ClassifierProbability(), ink]
    trainer = GRPOTrainer(read_policy(BUNDLED / "digits"), rewards, GRPOConfig(**grpo), columns=columns)
    history = trainer.train()
    assert history[-1]["reward"] > history[0]["reward"] + 0.1
    names = [f"rewards/{name}/mean" for name in ("ssim", "classifier", "ink=0.4")]
    assert all(name in history[0] for name in names)


# -- files


def test_files_of_images_are_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    from discrete_grpo.recipes.evaluate import evaluate, evaluate_file
    from discrete_grpo.recipes.kinds.images import write_sheet

    a, b = picture(seed=0), picture(seed=1)
    (tmp_path / "plain.txt").write_text(f"{a}\n\n{b}\n{a}\n")
    found = evaluate_file(str(tmp_path / "plain.txt"), out=str(tmp_path / "out.json"))
    assert [found[k] for k in ("num_samples", "valid", "unique")] == pytest.approx([4, 0.75, 2 / 3])
    assert (tmp_path / "out.json").is_file()
    (tmp_path / "table.csv").write_text(f"image,label\n{a},0\n,0\n{b},0\n")
    assert "class_diversity" in evaluate_file(str(tmp_path / "table.csv"))
    (tmp_path / "short.csv").write_text(f"label,image\n0,{a}\n0\n")
    assert evaluate(tmp_path / "short.csv")["valid"] == 0.5
    (tmp_path / "bad.txt").write_text(f"{a}\nCCO\n")
    with pytest.raises(ValueError, match=r"bad.txt, line 2: 'CCO', expected HEIGHTxWIDTH"):
        evaluate_file(str(tmp_path / "bad.txt"))
    (tmp_path / "other.csv").write_text("smiles\nCCO\n")
    with pytest.raises(ValueError, match="or no column 'image' or 'sample'"):
        evaluate(tmp_path / "other.csv", kind="images")
    with pytest.raises(FileNotFoundError, match=r"file: .*none.txt does not exist"):
        evaluate(tmp_path / "none.txt", kind="images")
    assert write_sheet(tmp_path / "sheet.png", [a, None, b]).read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="samples: no image among 1"):
        write_sheet(tmp_path / "sheet.png", [None])


def test_labels_may_be_tensors() -> None:
    images = [Image(2, 2, bytes([k, 0, 255, 9 * k])) for k in range(6)]
    named = [0, 0, 0, 0, 1, 1]
    given, wanted = (
        images_metrics.evaluate(images, labels=labels)["class_diversity"] for labels in (list(torch.tensor(named)), named)
    )
    assert given == wanted


def test_images_without_a_label_are_no_class() -> None:
    images = [Image(2, 2, bytes([k, 0, 255, 9 * k])) for k in range(8)]
    found = images_metrics.evaluate(images, labels=[0, 0, "a", "a", None, None, "", ""])["class_diversity"]
    assert found == images_metrics.evaluate(images[:4], labels=[0, 0, "a", "a"])["class_diversity"]


def test_metrics_of_images_by_hand() -> None:
    black, white, grey = (Image(2, 2, bytes([level] * 4)) for level in (0, 255, 51))
    corner = Image(2, 2, bytes([255, 0, 0, 0]))
    found = images_metrics.evaluate([black, white, None, white, corner], labels=[1, 1, 1, 2, 1], reference=[black, grey])
    assert (found["num_samples"], found["valid"], found["unique"], found["novel"]) == (5.0, 4 / 5, 3 / 4, 2 / 3)
    assert found["ink"] == pytest.approx((0 + 1 + 1 + 1 / 4) / 4)
    apart = math.sqrt(3 / 4)  # of white and the corner; black and the corner are half apart
    assert found["diversity"] == pytest.approx((1 + 1 + 1 / 2 + 0 + apart + apart) / 6)
    assert found["class_diversity"] == pytest.approx((1 + 1 / 2 + apart) / 3)  # a class of one image has none
    assert math.isnan(images_metrics.diversity([black, None]))
    with pytest.raises(ValueError, match=r"labels: 1, expected one per sample \(2\)"):
        images_metrics.evaluate([black, white], labels=[1])


def test_the_diversity_of_many_images_is_that_of_a_seeded_draw() -> None:
    images = [Image(1, 1, bytes([k])) for k in range(40)]
    assert images_metrics.diversity(images, max_images=40) == pytest.approx(41 / 3 / 255)  # mean |i - j| of 40 numbers
    few = {images_metrics.diversity(images, max_images=3, seed=seed) for seed in range(8)}
    assert len(few) > 4
    assert images_metrics.diversity(images, max_images=3, seed=1) == images_metrics.diversity(images, max_images=3, seed=1)
