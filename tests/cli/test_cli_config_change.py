"""What a reload says that it changes, what it leaves, and what it never shows."""

import msgspec
import pytest

from pointsman.cli.config import Admin, Config, Engine, Key, Limits, Listen, Log, Timeouts
from pointsman.cli.config_change import Change, differences, in_force, is_live, with_names

HASH, OTHER = "sha256:" + "ab" * 32, "sha256:" + "cd" * 32


def engines(*urls: str) -> Config:
    return Config(engines=tuple(Engine(url=url) for url in urls))


def names(config: Config) -> list[str | None]:
    return [engine.name for engine in config.engines]


def test_nothing_differs_from_itself() -> None:
    assert differences(Config(), Config()) == ()


def test_each_difference_is_told_old_and_new() -> None:
    new = Config(policy="round_robin", timeouts=Timeouts(queue_s=5), log=Log(level="debug"))
    assert [str(change) for change in differences(Config(), new)] == [
        'policy: "marginal_cost" → "round_robin"',
        "timeouts.queue_s: 30.0 → 5",
        'log.level: "info" → "debug"',
    ]


def test_what_needs_a_restart_is_named_and_kept() -> None:
    old = Config(limits=Limits(queue_length_max=7))
    new = Config(
        listen=Listen(host="0.0.0.0", port=9, reply_headers=True),
        admin=Admin(port=10),
        limits=Limits(queue_length_max=8, index_bytes_max=1 << 20),
        log=Log(level="debug", access="none", decisions=1),
    )
    changes = differences(old, new)
    assert [change.path for change in changes if change.kept] == [
        "listen.host",
        "listen.port",
        "admin.port",
        "limits.index_bytes_max",
        "log.access",
        "log.decisions",
    ]
    assert "needs a restart" in str(changes[0])
    merged = in_force(old, new)
    assert merged == Config(
        listen=Listen(reply_headers=True),
        limits=Limits(queue_length_max=8),
        log=Log(level="debug"),
    )
    assert not any(change.kept for change in differences(old, merged))


def test_engines_and_keys_are_told_apart_by_name() -> None:
    old = Config(
        engines=(Engine(url="http://a:1", name="a"), Engine(url="http://b:1", name="b")),
        keys=(Key(name="k", hash=HASH), Key(name="l", hash=OTHER)),
    )
    new = Config(
        engines=(
            Engine(url="http://c:1", name="c", pool="long"),
            Engine(url="http://b:1", name="b", labels={"gpu": "h100"}),
        ),
        keys=(Key(name="l", hash=OTHER, requests_per_minute=5), Key(name="m", hash=HASH)),
    )
    assert differences(old, new) == (
        Change("engines[a]", 'url "http://a:1"', None),
        Change("engines[b].labels", "{}", '{"gpu":"h100"}'),
        Change("engines[c]", None, 'url "http://c:1", pool "long"'),
        Change("keys[k]", "hash ***", None),
        Change("keys[l].requests_per_minute", "null", "5"),
        Change("keys[m]", None, "hash ***"),
    )


def test_secrets_are_never_shown() -> None:
    old = Config(listen=Listen(api_keys=("secret-1",)), keys=(Key(name="k", hash=HASH),))
    new = Config(listen=Listen(api_keys=("secret-2",)), keys=(Key(name="k", hash=OTHER),))
    shown = [str(change) for change in differences(old, new)]
    assert shown == ["listen.api_keys: *** → ***", "keys[k].hash: *** → ***"]
    old = Config(engines=(Engine(url="http://a:1", name="a", api_key="secret-1"),))
    new = Config(engines=(Engine(url="http://a:1", name="a"),))
    assert [str(change) for change in differences(old, new)] == ['engines[a].api_key: *** → ""']
    assert "secret-1" not in str(differences(Config(), old)[0])


def test_engines_without_names_keep_theirs_when_one_before_them_goes() -> None:
    first = with_names(engines("http://a:1", "http://b:1", "http://c:1"))
    assert names(first) == ["engine-1", "engine-2", "engine-3"]
    second = with_names(engines("http://b:1", "http://d:1", "http://c:1"), first.engines)
    assert names(second) == ["engine-2", "engine-4", "engine-3"]
    assert [change.path for change in differences(first, second)] == [
        "engines[engine-1]",
        "engines[engine-4]",
    ]


def test_a_name_that_is_given_is_not_made_up_again() -> None:
    old = with_names(engines("http://a:1"))
    new = Config(engines=(Engine(url="http://a:1"), Engine(url="http://b:1", name="engine-1")))
    assert names(with_names(new, old.engines)) == ["engine-2", "engine-1"]


@pytest.mark.parametrize("section", Config.__struct_fields__)
def test_every_section_is_live_or_kept_as_a_whole(section: str) -> None:
    """A field that is neither would be told as applied while nothing goes by it."""
    value = getattr(Config(), section)
    if not isinstance(value, msgspec.Struct):
        assert isinstance(is_live(section), bool)
        return
    live = {name for name in value.__struct_fields__ if is_live(f"{section}.{name}")}
    fixed = {
        "listen": {"host", "port"},
        "limits": {"index_bytes_max", "tokenizer_bytes_max"},
        "log": {"access", "decisions"},
    }
    if live:
        assert set(value.__struct_fields__) - live == fixed.get(section, set())
