from pathlib import Path

from slime.config.paths import resolve
from slime_testing.engines import running_engine
from slime_testing.transports import check_transport


def test_contract(tmp_path: Path) -> None:
    model = resolve("pkg://slime_plugin_glm4/assets/glm4-tiny")
    with running_engine(model, tmp_path / "engine.log") as engine:
        check_transport("mailbox", engine.endpoint, model, mailbox=str(tmp_path))
