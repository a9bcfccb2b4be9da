"""`pointsman check` and `pointsman init`: the configuration file."""

import os
from pathlib import Path

import click

from pointsman.cli import config_example, config_file, config_reference
from pointsman.cli.messages import fail, reject
from pointsman.cli.yaml_reader import Rejected


@click.command(epilog="Exit codes: 0 ok, 2 the file cannot be used.")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check a configuration file without starting anything.

    Prints ok, or each problem as FILE:LINE:COLUMN: MESSAGE. Bounds are compared with each other
    once every value is usable by itself. ${NAME} is read from the environment,
    ${NAME:-VALUE} has a default, $$ is a dollar sign.
    """
    try:
        config = config_file.load(file, os.environ, opens_tokenizers=True)
    except Rejected as rejected:
        reject(rejected.lines(file))
    engines = len(config.engines)
    models = f", {len(config.models)} with a tokenizer" if config.models else ""
    click.echo(f"ok: {engines} engine{'' if engines == 1 else 's'}, policy {config.policy}{models}")


@click.command(epilog="Exit codes: 0 written, 2 the file exists or cannot be written.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("pointsman.yaml"))
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--reference", is_flag=True, help="Print every field as Markdown tables instead.")
def init(file: Path, force: bool, reference: bool) -> None:
    """Write an example with every field, its default and what it trades.

    FILE is pointsman.yaml if not given; - is stdout.
    """
    if reference:
        click.echo(config_reference.reference(), nl=False)
        return
    if str(file) == "-":
        click.echo(config_example.example(), nl=False)
        return
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(config_example.example())
    except FileExistsError:
        fail(f"{file} exists; --force overwrites it")
    except OSError as error:
        fail(f"{file} cannot be written: {error.strerror}")
    click.echo(f"wrote {file}; edit its engines, then: pointsman serve -c {file}")
