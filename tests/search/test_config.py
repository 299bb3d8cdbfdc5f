"""The file of a search: every mistake in it is said with its key, and with what was meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from edgeloop.errors import BadSetting
from edgeloop.search import campaign
from edgeloop.search.config import Objective, SearchConfig, config_of, read_config
from edgeloop.search.nets.plan import TrainingPlan

GOOD = {
    "search": {"budget": 12, "constraints": {"params": [1e3, 2e6]}},
    "objectives": {"chip_latency_ms": {"goal": "min"}, "val_iou": {"train": {"epochs": 1}}},
    "data": "working/faces",
}
EXAMPLES = Path(__file__).parents[2] / "examples/search"

Read = Callable[..., SearchConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(*words: str, text: str = yaml.safe_dump(GOOD)) -> SearchConfig:
        file = tmp_path / "mine.yaml"
        file.write_text(text)
        return read_config(file, words)

    return read


def test_what_is_not_said_has_a_usual_value(read: Read):
    config = read()
    assert (config.name, config.space, config.sampler) == ("mine", "hourglass", "default")
    assert (config.seed, config.workers, config.batch, config.size) == (0, 1, 0, (64, 64))
    assert config.wanted == ("chip_latency_ms", "val_iou", "params")
    assert config.train == {"epochs": 1}


@pytest.mark.parametrize("name", ["laptop", "chips", "farm", "ray", "azureml"])
def test_the_examples_can_be_read(name: str):
    assert read_config(EXAMPLES / f"{name}.yaml").name == name


def test_words_change_what_the_file_says(read: Read):
    config = read(
        "search.budget=30",
        "search.size=[64, 96]",
        "search.constraints.macs=[0, 1e9]",
        "objectives.val_iou.train.steps=20",
        "objectives.val_iou.goal=min",
        "data=raw/other",
        "search.name=again",
    )
    assert (config.budget, config.size, config.data) == (30, (64, 96), "raw/other")
    assert config.name == "again"
    assert config.constraints == {"params": (1e3, 2e6), "macs": (0.0, 1e9)}
    assert config.train == {"epochs": 1, "steps": 20}
    assert config.objectives[1].goal == "min"


def test_numbers_may_be_written_as_people_write_them(read: Read):
    config = read("search.constraints.params=[1e3, 5e6]", "search.budget=20.0")
    assert config.constraints["params"] == (1000.0, 5_000_000.0)
    assert config.budget == 20


def test_variables_are_filled_in(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FACES", "working/mine")
    assert read("data=${FACES}").data == "working/mine"
    with pytest.raises(BadSetting, match="the variable NOWHERE is not set"):
        read("data=${NOWHERE}")


def test_objectives_know_which_way_is_better():
    assert Objective("params", "min").minimised(3.0) == 3.0
    assert Objective("val_iou", "max").minimised(0.5) == -0.5


MISSPELT = [
    ("serach.budget", "search"),
    ("objective.val_iou", "objectives"),
    ("dat", "data"),
    ("stores", "store"),
    ("experimnt", "experiment"),
    ("farms.timeout", "farm"),
    ("search.budgt", "search.budget"),
    ("search.bugdet", "search.budget"),
    ("search.sapce", "search.space"),
    ("search.option.stems", "search.options"),
    ("search.sampeler", "search.sampler"),
    ("search.worker", "search.workers"),
    ("search.constraint.params", "search.constraints"),
    ("search.retry", "search.retries"),
    ("search.failure", "search.failures"),
    ("search.iterations", "search.iteration"),
    ("search.seeds", "search.seed"),
    ("search.folders", "search.folder"),
    ("search.class", "search.classes"),
    ("search.constraints.parms", "search.constraints.params"),
    ("search.constraints.chip_latency", "search.constraints.chip_latency_ms"),
    ("objectives.chip_latncy_ms.goal", "objectives.chip_latency_ms"),
    ("objectives.val_miou.goal", "objectives.val_iou"),
    ("objectives.farm_f2.goal", "objectives.farm_f1"),
    ("objectives.val_iou.gaol", "objectives.val_iou.goal"),
    ("objectives.val_iou.trian.epochs", "objectives.val_iou.train"),
    ("objectives.chip_latency_ms.devcie", "objectives.chip_latency_ms.device"),
    ("objectives.val_iou.train.epoch", "objectives.val_iou.train.epochs"),
    ("objectives.val_iou.train.step", "objectives.val_iou.train.steps"),
    ("objectives.val_iou.train.learning_rat", "objectives.val_iou.train.learning_rate"),
    ("objectives.val_iou.train.computes", "objectives.val_iou.train.compute"),
    ("objectives.val_iou.train.gpu", "objectives.val_iou.train.gpus"),
    ("objectives.val_iou.train.atonce", "objectives.val_iou.train.at_once"),
    ("farm.timout", "farm.timeout"),
    ("budget", "search.budget"),
    ("workers", "search.workers"),
    ("seed", "search.seed"),
]


@pytest.mark.parametrize(("key", "meant"), MISSPELT)
def test_a_misspelt_word_is_an_error_with_what_was_meant(read: Read, key: str, meant: str):
    with pytest.raises(BadSetting, match=rf"did you mean '{meant}'\?"):
        read(f"{key}=1")


@pytest.mark.parametrize(("key", "meant"), [row for row in MISSPELT if "." in row[0]])
def test_the_same_in_the_file(read: Read, key: str, meant: str):
    document = yaml.safe_load(yaml.safe_dump(GOOD))
    *path, last = key.split(".")
    place = document
    for part in path:
        place = place.setdefault(part, {})
    place[last] = 1
    with pytest.raises(BadSetting, match=rf"did you mean '{meant}'\?"):
        read(text=yaml.safe_dump(document))


def test_a_key_that_is_near_nothing_is_answered_with_all_there_are(read: Read):
    with pytest.raises(BadSetting, match=r"unknown key 'search\.zzz': known keys are .*budget"):
        read("search.zzz=1")


WRONG = [
    ("search.budget=0", r"search\.budget must be a whole number, 1 or more, not 0"),
    ("search.budget=many", r"search\.budget must be a whole number"),
    ("search.budget=1.5", r"search\.budget must be a whole number"),
    ("search.budget=true", r"search\.budget must be a whole number"),
    ("search.workers=0", r"search\.workers must be a whole number, 1 or more"),
    ("search.seed=-1", r"search\.seed must be a whole number, 0 or more"),
    ("search.sampler=tp", r"search\.sampler cannot be 'tp': did you mean 'tpe'\?"),
    ("search.sampler=bayes-magic", "there are default, tpe"),
    ("search.publish=all", "there are front, none"),
    ("search.size=[1, 2, 3]", r"search\.size must be a side"),
    ("search.size=4", r"search\.size must be a whole number, 8 or more"),
    ("search.name=a b", r"search\.name must be 3 to 40 letters"),
    ("search.name=../up", r"search\.name must be 3 to 40 letters"),
    ("search.options=3", r"search\.options must hold 'key: value' lines"),
    ("search.constraints.params=5", r"must be \[least, most\], not 5"),
    ("search.constraints.params=[1, 2, 3]", r"must be \[least, most\]"),
    ("search.constraints.params=[a, 2]", "must be a number, not 'a'"),
    ("search.constraints.params=[.nan, 2]", "must be a number"),
    ("search.constraints.params=[9, 2]", "allows nothing: 9 is above 2"),
    ("search=3", "search must hold 'key: value' lines"),
    ("objectives=[]", "objectives must hold 'key: value' lines"),
    ("objectives={}", "objectives must name at least one of params, macs"),
    ("objectives.val_iou=5", r"objectives\.val_iou must hold"),
    ("objectives.val_iou.goal=up", r"objectives\.val_iou\.goal cannot be 'up': there are min, max"),
    ("objectives.val_iou.train=5", r"objectives\.val_iou\.train must hold"),
    ("objectives.val_iou.train.epochs=many", "must be a whole number, 1 or more, not 'many'"),
    ("objectives.val_iou.train.steps=0", "must be a whole number, 1 or more, not 0"),
    ("objectives.val_iou.train.batch=1.5", "must be a whole number, 1 or more"),
    ("objectives.val_iou.train.learning_rate=0", "must be a number above 0, not 0"),
    ("objectives.val_iou.train.learning_rate=fast", "must be a number above 0, not 'fast'"),
    ("objectives.val_iou.train.timeout=soon", "must be a time like 90s, 30m, 2h or 1d"),
    ("objectives.val_iou.train.memory=lots", "must be a size like 4GB"),
    ("objectives.val_iou.train.cpus=-1", "must be a number, 0 or more, not -1"),
    ("objectives.val_iou.train.compute=[a]", "must be a text"),
    ("objectives.host_latency_ms.repeats=few", "must be a whole number, 1 or more, not 'few'"),
    ("objectives.farm_latency_ms.timeout=7", "must be a time like 90s"),
    ("objectives.chip_latency_ms.devices=htp", "devices must be a list, not 'htp'"),
    ("objectives.chip_latency_ms.devices=[htp, '']", "must be names of chips, for example"),
    ("objectives.chip_latency_ms.devices=[htp:a, htp:b, htp:a]", "devices names htp:a twice"),
    ("objectives.chip_latency_ms={device: htp:a, devices: [htp:b]}", "and device cannot both be"),
    (
        "objectives={chip_latency_ms: {devices: [htp:a]}, ddr_bytes: {devices: [htp:b]}}",
        r"objectives\.ddr_bytes must name the chips of chip_latency_ms",
    ),
    ("search.constraints.chip_latency_ms={htp:a: [0, 1]}", "htp:a, which is not among the chips"),
    ("search.constraints.chip_latency_ms={htp:a: 3}", r"of htp:a must be \[least, most\]"),
    ("farm.timeout=7", "must be a time like 90s"),
    ("objectives.val_f1.train.epochs=7", r"objectives\.val_f1\.train must be that of val_iou"),
    ("data=''", "data must name the dataset to train with"),
    ("data=[a]", "data must be a text"),
    ("search.budget", "is not a valid override: write key=value"),
    ("=3", "is not a valid override: write key=value"),
    ("search.budget=[1", r"the value of search\.budget cannot be read"),
]


@pytest.mark.parametrize(("word", "said"), WRONG)
def test_a_wrong_value_is_said_with_its_key(read: Read, word: str, said: str):
    with pytest.raises(BadSetting, match=said) as raised:
        read(word)
    assert str(raised.value).startswith("mine.yaml: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search.constraints.val_iou=[0.1, 1]",), r"search\.constraints\.val_iou needs val_iou"),
        (("objectives.farm_f1.stage=f1_1k",), r"objectives\.farm_f1 needs val_iou or val_f1"),
    ],
)
def test_what_only_training_can_tell_needs_a_way_to_train(
    read: Read, words: tuple[str, ...], said: str
):
    with pytest.raises(BadSetting, match=said):
        read("objectives={params: {}}", *words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("search: [", r"mine\.yaml, line 1: cannot be read as YAML"),
        ("just words", "must hold 'search:' and 'objectives:'"),
        ("", "must hold 'search:' and 'objectives:'"),
        ("objectives: {params: {}}\nsearch: {1: 2}", "unknown key"),
        ("- 1\n- 2", "must hold 'search:' and 'objectives:'"),
    ],
)
def test_a_file_that_is_no_search_says_so(read: Read, text: str, said: str):
    with pytest.raises(BadSetting, match=said):
        read(text=text)


def test_a_mistake_is_said_with_its_line(read: Read):
    text = "data: x\nobjectives:\n  params: {}\nsearch:\n  seed: 1\n  budget: many\n"
    with pytest.raises(BadSetting, match=r"^mine\.yaml, line 6: search\.budget must be a whole"):
        read(text=text)
    with pytest.raises(BadSetting, match=r"^mine\.yaml: search\.budget must be a whole"):
        read("search.budget=few", text=text)


def test_a_search_for_several_chips_has_an_objective_a_limit_and_a_front_for_each(read: Read):
    config = read(
        "objectives={val_iou: {}, chip_latency_ms: {devices: [htp:a, 'htp:b c']}, ddr_bytes: {}}",
        "search.constraints={params: [0, 9], chip_latency_ms: {htp:a: [0, 2]}, ddr_bytes: [0, 5]}",
    )
    a, b = "htp:a", "htp:b-c"
    chips = [f"{value}@{chip}" for value in ("chip_latency_ms", "ddr_bytes") for chip in (a, b)]
    assert config.devices == config.chips == (a, b)
    assert [objective.name for objective in config.objectives] == ["val_iou", *chips]
    assert [(front.name, front.places) for front in config.fronts] == [
        (a, (0, 1, 3)),
        (b, (0, 2, 4)),
    ]
    assert config.constraints == {
        "params": (0, 9),
        f"chip_latency_ms@{a}": (0, 2),
        f"chip_latency_ms@{b}": (-math.inf, math.inf),
        f"ddr_bytes@{a}": (0, 5),
        f"ddr_bytes@{b}": (0, 5),
    }
    [one] = read("objectives={val_iou: {}, chip_latency_ms: {device: htp:a}}").fronts
    assert (one.name, one.places) == ("", (0, 1))


def test_a_chip_that_is_named_twice_is_said_with_its_line(read: Read):
    text = "data: x\nobjectives:\n  params: {}\n  chip_latency_ms:\n    devices: [htp, htp]\n"
    with pytest.raises(BadSetting, match=r"^mine\.yaml, line 5: objectives\.chip_latency_ms\.dev"):
        read(text=text)


def test_a_file_that_is_not_there_or_not_text_says_so(tmp_path: Path):
    with pytest.raises(BadSetting, match=r"none\.yaml: there is no such file"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "picture.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadSetting, match="cannot be read"):
        read_config(tmp_path / "picture.yaml")
    with pytest.raises(BadSetting, match="cannot be read"):
        read_config(tmp_path)


def test_what_a_search_is_does_not_change_with_its_budget(read: Read):
    assert read("search.budget=99", "search.workers=4").identity() == read().identity()
    elsewhere = read("objectives.val_iou.train.compute=x", "objectives.val_iou.train.timeout=1h")
    assert elsewhere.identity() == read().identity(), "it may go on elsewhere"
    assert read("objectives.val_iou.train.epochs=2").identity() != read().identity()
    assert read("search.seed=3").identity() != read().identity()
    assert read("farm.device=host").identity() != read().identity()


def test_the_task_is_what_training_is_told(read: Read):
    assert read("task=classification").train == {"epochs": 1, "task": "classification"}
    with pytest.raises(BadSetting, match="task cannot be 'clasification': did you mean 'classif"):
        read("task=clasification")


def test_a_variable_is_used_and_not_written_down(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_STORE", "sqlite:somewhere")
    config = read("store=${SOME_STORE}")
    assert (config.store, config.document["store"]) == ("sqlite:somewhere", "${SOME_STORE}")


def test_the_number_of_classes_is_the_datasets_unless_the_file_says_another(tmp_path: Path):
    folder = tmp_path / "data" / "working" / "roads"
    folder.mkdir(parents=True)
    (folder / "000000_seg.png").write_bytes(b"")
    (folder / "label_map.json").write_text('["background", "road", "car"]')
    objectives = {"val_iou": {"train": {"epochs": 1}}}
    for search, data, classes in (
        ({}, "working/roads", 3),
        ({"classes": 5}, "working/roads", 5),
        ({}, "working/only-in-the-store", 19),
    ):
        document = {"search": search, "data": data, "objectives": objectives}
        assert (
            campaign.with_classes(config_of(document, "search.yaml"), tmp_path).classes == classes
        )


def test_the_farm_example_starts_runners_that_serve_its_own_experiment():
    """What its comment says to run is parsed as the command line parses it."""
    from edgeloop.cli.app import app
    from edgeloop.cli.runner import runner

    file = Path(__file__).parents[2] / "examples/search/farm.yaml"
    lines = [line.removeprefix("#").partition(" #")[0].split() for line in file.open()]
    [words] = [line[2:] for line in lines if line[:2] == ["edgeloop", "runner"]]
    root = app.make_context("edgeloop", [], resilient_parsing=True)
    context = runner.make_context("runner", words, parent=root)
    assert context.params["experiment"] == read_config(file).name


@pytest.mark.parametrize(
    ("word", "cards", "workers"),
    [
        ("search.budget=9", 2, 8),
        ("search.budget=9", 0, 1),
        ("search.workers=3", 2, 3),
        ("objectives.val_iou.train.compute=cluster", 2, 1),
        ("objectives.val_iou.train.device=cpu", 2, 1),
    ],
)
def test_candidates_share_the_gpus_of_this_machine_unless_the_file_says_how_many(
    read: Read, monkeypatch: pytest.MonkeyPatch, word: str, cards: int, workers: int
):
    def usable(plan: TrainingPlan) -> list[str]:
        return [] if plan.device == "cpu" else [str(index) for index in range(cards)]

    monkeypatch.setattr(campaign, "usable_cards", usable)
    assert campaign.with_workers(read(word)).workers == workers
