"""`slime push RUN[/STEP] OWNER/NAME`: the model of a run, or an HF folder, on the Hugging Face hub."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from slime import files
from slime.arguments import ArgumentParser
from slime.checkpoints import Checkpoint, published
from slime.errors import SlimeError, did_you_mean
from slime.printable import printable
from slime_observers.card import card
from slime_tools.hub.client import client, told


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Put a model on the Hugging Face hub, in the account of 'hf auth login' or HF_TOKEN."
    what = "run directory, for its export; RUN/step-000010, for a checkpoint of it; or HF folder"
    parser.add_argument("path", type=Path, help=what)
    parser.add_argument("name", help="repository, owner/name; is made where there is none")
    parser.add_argument("--private", action="store_true", help="for you, or the owner's members, alone")
    parser.add_argument("--dry-run", action="store_true", help="send nothing: say what would be sent")


def run(args: Namespace) -> None:
    """Raises SlimeError: there is no model at that path, or the hub refuses it."""
    hub = client(args.name)
    folder, message = _model(args.path.absolute(), args.dry_run)
    sent = [file for file in files.files_under(folder) if not _is_hidden(file.relative_to(folder))]
    if sent:
        total = sum(file.stat().st_size for file in sent)
        names = "\n".join(
            f"  {files.human_bytes(file.stat().st_size):>12}  {file.relative_to(folder)}" for file in sent
        )
        print(printable(f"{folder} -> {args.name}: {len(sent)} files, {files.human_bytes(total)}\n{names}"), flush=True)
    if args.dry_run:
        print("nothing is sent: --dry-run")
        return
    with told(args.name, "model", args.name):
        api = hub.HfApi()
        api.create_repo(args.name, private=args.private or None, exist_ok=True)
        info = api.model_info(args.name)
        if args.private and not info.private:
            todo = "Name another repository, or leave --private out."
            raise SlimeError("this repository is there already, and public", where=args.name, todo=todo)
        left = [".*", "*/.*"]
        if not _may_write_card(hub, args.name, {each.rfilename for each in info.siblings or ()}):
            left.append(card.CARD)
            print(printable(f"{card.CARD} of {args.name} was edited there and stays as it is"), flush=True)
        done = api.upload_folder(repo_id=args.name, folder_path=folder, commit_message=message, ignore_patterns=left)
    print(printable(f"sent as {done.oid}: {api.endpoint}/{args.name}"))


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _may_write_card(hub: Any, name: str, there: set[str]) -> bool:
    return card.CARD not in there or card.is_ours(Path(hub.hf_hub_download(name, card.CARD)))


def _model(path: Path, dry_run: bool) -> tuple[Path, str]:
    """An HF folder, and the message of its commit."""
    if (path / "config.yaml").is_file():
        if not (path / "export" / "config.json").is_file():
            todo = "Wait for its end, or name a checkpoint: " + _steps(path)
            raise SlimeError("this run has no export", where=str(path), todo=todo)
        return path / "export", f"{path.name}, trained with slime"
    if (path / "config.json").is_file():
        return path, f"{path.name}, by slime"
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    if not (run / "config.yaml").is_file():
        todo = "Name a folder with the config.yaml of a run, or the config.json of a model."
        raise SlimeError("this is neither a run directory nor an HF folder", where=str(path), todo=todo)
    there = {checkpoint.path.name: checkpoint for checkpoint in published(run / "checkpoints")}
    if path.name not in there:
        todo = did_you_mean(path.name, there) if there else "Wait until it has saved one."
        raise SlimeError(f"there is no checkpoint '{path.name}'", where=str(run), todo=todo)
    return _converted(run, there[path.name], dry_run), f"{run.name}, {path.name}, trained with slime"


def _converted(run: Path, checkpoint: Checkpoint, dry_run: bool) -> Path:
    """A checkpoint as an HF folder with a card, beside the run's export; one that is there is taken."""
    folder = run / f"export-{checkpoint.path.name}"
    if not (folder / "config.json").is_file():
        if dry_run:
            print(printable(f"{checkpoint.path} would be converted to {folder}"))
            return folder
        from slime_tools.convert import command, job

        job.run(command.from_dist(run, folder, checkpoint.step), processes=1)
    position = checkpoint.driver_state()["position"]
    card.write(run, folder, position=position)
    return folder


def _steps(run: Path) -> str:
    return ", ".join(checkpoint.path.name for checkpoint in published(run / "checkpoints")) or "there is none yet."
