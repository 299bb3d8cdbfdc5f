"""Spaces: functions of a trial, replayed from their answers alone."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
import torch

from edgeloop.errors import BadArchitecture, BadInput, BadSpace
from edgeloop.search.nets.architecture import Architecture, FixedTrial, RecordingTrial
from edgeloop.search.nets.layers import Enlarge, adjoint
from edgeloop.search.nets.spaces import build, find_space

SHAPE = (1, 3, 64, 64)
LAPTOP = {"base_channels": [8, 12], "factors": [1, 1.5], "most_layers": 2, "kernels": ["conv3x3"]}
SPACES = {
    "hourglass": (LAPTOP, (1, 19, 64, 64)),
    "archai-hourglass": ({**LAPTOP, "blocks": 3}, (1, 18, 64, 64)),
    "small-classifier": ({}, (1, 7)),
}


def members(name: str, count: int) -> list[Architecture]:
    options, output = SPACES[name]
    space = find_space(name, options)
    return [space.sample(seed, SHAPE, output[1]) for seed in range(count)]


@pytest.mark.parametrize("name", SPACES)
def test_a_member_is_rebuilt_from_its_json_without_the_options_it_was_found_with(name: str):
    for arch in members(name, 10):
        net = build(Architecture.from_json(arch.canonical)).eval()
        with torch.no_grad():
            assert net(torch.zeros(SHAPE)).shape == SPACES[name][1]


@pytest.mark.parametrize("name", SPACES)
def test_the_same_seed_draws_the_same_member_and_others_differ(name: str):
    first, again = members(name, 12), members(name, 12)
    assert first == again
    assert len({arch.id for arch in first}) > 6


def test_a_space_of_several_depths_has_members_of_each_and_all_are_rebuilt():
    space = find_space("hourglass", {**LAPTOP, "depth": [2, 1, 3], "stems": [2, 4]})
    found = [space.sample(seed, SHAPE, 19) for seed in range(12)]
    assert {arch.params["depth"] for arch in found} == {1, 2, 3}
    for arch in {arch.params["depth"]: arch for arch in found}.values():
        assert build(arch).eval()(torch.zeros(SHAPE)).shape == (1, 19, 64, 64)
    with pytest.raises(BadInput, match=r"consecutive numbers, such as \[2, 3, 4\], not \[1, 3\]"):
        find_space("hourglass", {"depth": [1, 3]}).sample(0, SHAPE, 19)


def test_first_weights_depend_on_the_seed_and_on_nothing_else():
    arch = members("hourglass", 1)[0]
    one = build(arch, seed=3)
    torch.manual_seed(99)
    before = torch.rand(1)
    torch.manual_seed(99)
    same, other = build(arch, seed=3), build(arch, seed=4)
    assert torch.equal(torch.rand(1), before), "building must not use up others' random numbers"
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", SPACES)
def test_optuna_drives_a_space_and_what_it_chose_is_an_architecture(name: str):
    options, output = SPACES[name]
    space = find_space(name, options)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(6):
        trial = study.ask()
        net = space.build(trial, SHAPE, output[1])
        arch = Architecture(name, trial.params, SHAPE, output[1])
        count = sum(p.numel() for p in build(arch).parameters())
        assert count == sum(p.numel() for p in net.parameters())
        study.tell(trial, float(count))


@pytest.mark.parametrize("name", SPACES)
def test_the_questions_alone_are_those_of_building(name: str, monkeypatch: pytest.MonkeyPatch):
    """A search asks a space a dozen times a proposal; no layer is made for that."""
    options, output = SPACES[name]
    space = find_space(name, options)
    for seed in range(20):
        built, asked = RecordingTrial(seed), RecordingTrial(seed)
        space.build(built, SHAPE, output[1])
        with monkeypatch.context() as patched:
            patched.setattr(torch.nn.Module, "__init__", None)  # building one would raise
            space.ask(asked, SHAPE, output[1])
        assert list(asked.params.items()) == list(built.params.items())


def test_a_drawn_number_is_within_its_bounds_and_asked_again_the_same():
    for seed in range(50):
        trial = RecordingTrial(seed)
        assert trial.suggest_int("a", 2, 9, step=3) in (2, 5, 8)
        assert 1 <= trial.suggest_int("b", 1, 100, log=True) <= 100
        assert trial.suggest_float("c", 1.0, 2.0, step=0.5) in (1.0, 1.5, 2.0)
        assert 1e-4 <= trial.suggest_float("d", 1e-4, 1.0, log=True) <= 1.0
        assert trial.suggest_float("e", -1.0, 1.0) == trial.suggest_float("e", -1.0, 1.0)
        assert trial.suggest_categorical("f", ["x", None]) in ("x", None)
        assert set(trial.params) == set("abcdef")


def test_a_replay_gives_the_choice_itself_and_refuses_what_is_no_number():
    trial = FixedTrial({"a": 2, "b": "x", "c": 1.5}, "It")
    chosen = trial.suggest_categorical("a", [1.2, 2.0])
    assert (chosen, type(chosen)) == (2.0, float)
    assert trial.suggest_float("a", 0, 1) == 2.0
    for ask in (trial.suggest_int, trial.suggest_float):
        with pytest.raises(BadArchitecture, match="parameter 'b' is 'x'"):
            ask("b", 0, 1)
    with pytest.raises(BadArchitecture, match="whole number"):
        trial.suggest_int("c", 0, 2)


def test_a_missing_and_an_unused_parameter_are_named():
    arch = members("small-classifier", 1)[0]
    params = dict(arch.params)
    with pytest.raises(BadArchitecture, match="no use for the parameters 'widht'") as caught:
        build(Architecture(arch.space, params | {"widht": 8}, SHAPE, 7))
    assert "small-classifier" in str(caught.value)
    del params["width"]
    with pytest.raises(BadArchitecture, match="'width' is missing"):
        build(Architecture(arch.space, params, SHAPE, 7))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"h0_down1_op0": "conv9x9"}, "no layer 'conv9x9'"),
        ({"stem_stride": 3}, "not divisible by 48"),
        ({"depth": 6}, "missing|not divisible"),
        ({"base_channels": -8}, "raised|negative"),
    ],
)
def test_a_value_that_makes_no_net_is_one_sentence(change: dict[str, object], said: str):
    arch = members("hourglass", 1)[0]
    with pytest.raises(BadInput, match=said):
        build(Architecture(arch.space, {**arch.params, **change}, SHAPE, 19))


@pytest.mark.parametrize(
    ("sides", "depth"), [((256, 256), 5), ((128, 128), 5), ((96, 96), 4), ((64, 96), 4)]
)
def test_an_hourglass_is_as_deep_as_its_sides_allow(sides: tuple[int, int], depth: int):
    space = find_space("hourglass", LAPTOP)
    for seed in range(5):
        arch = space.sample(seed, (1, 3, *sides), 19)
        assert arch.params["depth"] == depth
        assert all(side % (2**depth * arch.params["stem_stride"]) == 0 for side in sides)


def test_sides_that_cannot_be_halved_are_refused():
    with pytest.raises(BadSpace, match="choose sides that are divisible by 8"):
        find_space("hourglass").sample(0, (1, 3, 50, 50), 19)


def test_an_unknown_space_or_option_is_refused_with_a_guess():
    with pytest.raises(BadSpace, match="did you mean 'hourglass'"):
        find_space("hourglas")
    with pytest.raises(BadInput, match="no option 'base_chanels': did you mean 'base_channels'"):
        find_space("hourglass", {"base_chanels": [8]})


def test_no_two_factors_of_the_default_space_give_the_same_width():
    from edgeloop.search.nets.spaces import BASE, FACTORS, _Blocks, _whole_channels

    for base in BASE:
        several = [_Blocks(FixedTrial({"h_factor": f}, ""), FACTORS, [], 1) for f in FACTORS]
        widths = {_whole_channels(blocks.widened("h", base)) for blocks in several}
        assert len(widths) == len(FACTORS)


@pytest.mark.parametrize("factor", [2, 4])
def test_the_gathered_gradient_of_an_enlargement_is_the_true_one(factor: int):
    x = torch.rand(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    y = Enlarge(factor)(x)
    gradient = torch.rand_like(y)
    y.backward(gradient)
    ours = adjoint(adjoint(gradient, 3, factor), 2, factor)
    torch.testing.assert_close(ours, x.grad)


# Users' own files


USERS_SPACE = """
from torch import nn

def build(trial, shape, classes, *, most=8):
    width = trial.suggest_int("width", 4, most)
    return nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, classes, 1))

def broken(trial, shape, classes):
    raise KeyError("a fault of mine")

def nothing(trial, shape, classes):
    trial.suggest_int("width", 4, 8)

def short(trial):
    return nn.Identity()

number = 3
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "nets").mkdir(parents=True)
    (folder / "nets/my_space.py").write_text(USERS_SPACE)
    return folder


def test_a_function_in_a_file_of_the_project_is_a_space(project: Path):
    space = find_space("nets/my_space.py:build", {"most": 5}, project)
    arch = space.sample(1, SHAPE, 4)
    assert arch.space == "nets/my_space.py:build" and arch.params["width"] in (4, 5)
    with torch.no_grad():
        assert build(arch, project=project)(torch.zeros(SHAPE)).shape == (1, 4, 64, 64)


def test_an_edited_file_is_read_anew(project: Path):
    find_space("nets/my_space.py:build", project=project)
    file = project / "nets/my_space.py"
    file.write_text(USERS_SPACE.replace('"width"', '"channels"'))
    assert (
        "channels"
        in find_space("nets/my_space.py:build", project=project).sample(1, SHAPE, 4).params
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other.py:build", "there is no file 'other.py'"),
        ("nets/my_space.py:bulid", "has no function 'bulid'"),
        ("nets/my_space.py:number", "'number' in nets/my_space.py is not a function"),
        ("nets/my_space.py:short", r"\(trial, shape, classes\)"),
        ("../outside.py:build", "not inside the project"),
        ("nets/link.py:build", "not inside the project"),
        ("nets/my_space:build", "named like my_space.py:build"),
        ("nets/syntax.py:build", "syntax.py raised SyntaxError"),
        ("nets/raises.py:build", "raises.py raised ZeroDivisionError"),
    ],
)
def test_a_space_that_cannot_be_loaded_is_one_sentence(project: Path, name: str, said: str):
    (project.parent / "outside.py").write_text(USERS_SPACE)
    (project / "nets/link.py").symlink_to(project.parent / "outside.py")
    (project / "nets/syntax.py").write_text("def build(:\n")
    (project / "nets/raises.py").write_text("1 / 0\n")
    with pytest.raises(BadSpace, match=said) as caught:
        find_space(name, project=project)
    assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [("broken", "it raised KeyError: 'a fault of mine'"), ("nothing", "it returned NoneType")],
)
def test_a_space_that_fails_is_one_sentence(project: Path, function: str, said: str):
    space = find_space(f"nets/my_space.py:{function}", project=project)
    with pytest.raises(BadSpace, match=said):
        space.sample(0, SHAPE, 4)


def test_a_pruned_trial_is_no_fault_of_the_space(project: Path):
    (project / "prunes.py").write_text(
        "import optuna\ndef build(trial, shape, classes):\n    raise optuna.TrialPruned()\n"
    )
    with pytest.raises(optuna.TrialPruned):
        find_space("prunes.py:build", project=project).sample(0, SHAPE, 4)
