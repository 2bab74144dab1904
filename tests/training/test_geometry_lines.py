"""The line that names the sizes of a memory: fields and numbers of the described system, on every device."""

from __future__ import annotations

from typing import Any

import pytest

from wyrmling import Config, Model
from wyrmling.errors import ConfigError
from wyrmling.training.geometry import geometry_line, limit_scratch


def line(device: str = "cpu", rows: int = 24, block: int = 512, **model: Any) -> tuple[str, str] | None:
    config = Config.from_dict({"model": model, "training": {"batch_size": rows, "block_size": block}})
    dragon = Model(config.effective_model, 32)
    limit_scratch(dragon.memory)
    return geometry_line(config, device, dragon.memory)


def small(memory: str, **more: Any) -> dict[str, Any]:
    return {"n_layer": 1, "n_embd": 128, "latent_total": 512, "sequence_kernel": memory, **more}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_mamba2(device: str) -> None:
    assert line(device, **small("mamba2", mamba={"headdim": 128, "ngroups": 1})) == (
        f"{device} mamba2 geometry",
        "micro_batch=24 kernel_block=512 tokens/micro_batch=12288 d_inner=256 headdim=128 nheads=2 ngroups=1 "
        "d_state=128 d_conv=4 chunk_size=64",
    )


def test_mamba3() -> None:
    sizes = {"headdim": 64, "ngroups": 4, "rope_fraction": 0.5, "chunk_size": 64}
    assert line(**small("mamba3", mamba=sizes)) == (
        "cpu mamba3 geometry",
        "micro_batch=24 kernel_block=512 tokens/micro_batch=12288 d_inner=256 headdim=64 nheads=4 ngroups=4 "
        "d_state=128 rope_angles=32 chunk_size=64",
    )


def test_rwkv8() -> None:
    assert line(**small("rwkv8")) == (
        "cpu rwkv8 geometry",
        "micro_batch=24 kernel_block=512 tokens/micro_batch=12288 latent_total=512 latent/head=128 nheads=4 "
        "value_heads=1 embd=128 runtime_chunk=64",
    )


def test_linear_attention_has_none() -> None:
    assert line(**small("linear_attention", mamba={"headdim": 128})) is None


def test_the_chunk_of_rwkv8_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk() -> str:
        found = line(**small("rwkv8"))
        assert found is not None
        return found[1].rpartition("=")[2]

    monkeypatch.setenv("WYRMLING_RWKV8_CHUNK", "100")
    assert chunk() == "100"
    monkeypatch.setenv("WYRMLING_RWKV8_CHUNK", "9999")
    assert chunk() == "512"
    monkeypatch.delenv("WYRMLING_RWKV8_CHUNK")
    # 4 (3 C N D + 2 C N) bytes for each of 24 x 2 rows and heads, which are taken at a time, halved until they fit
    monkeypatch.setenv("WYRMLING_RWKV8_SCRATCH_BYTES", str(4 * 24 * 2 * 128 * (3 * 128 + 2) * 16))
    assert chunk() == "16"


@pytest.mark.parametrize("name", ["WYRMLING_RWKV8_CHUNK", "WYRMLING_RWKV8_SCRATCH_BYTES"])
@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_a_variable_that_is_no_number_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name} must be a positive whole number, got '{value}'"):
        line(**small("rwkv8"))
