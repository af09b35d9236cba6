"""Encoders for use without osiris: safetensors, timm, ONNX and TorchScript, each with a model card."""

from osiris.export.export import Exported, Format, export

__all__ = ["Exported", "Format", "export"]
