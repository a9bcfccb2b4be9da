"""The `model` field of a multipart form (audio), found without reading the file in it."""

import re

_MODEL_HEAD_BYTES = 256 * 1024
_MODEL_TAIL_BYTES = 64 * 1024
"""A form's text fields stand before its file or after it; the file itself is not scanned."""

_FORM_PARTS_MAX = 64
_PART_HEAD_BYTES_MAX = 1024
_MODEL_BYTES_MAX = 512

_BOUNDARY = re.compile(r'multipart/form-data\s*;(?:.*;)?\s*boundary="?([^";,]{1,70})"?', re.I)
_IS_MODEL = re.compile(rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*(?:;|\r|$)', re.I)


def read_multipart_model(content_type: str, body: bytes) -> str | None:
    """The `model` field of a multipart form; None if there is none near its start or end."""
    found = _BOUNDARY.match(content_type.strip())
    if found is None or not found.group(1).isascii():
        return None
    delimiter = b"--" + found.group(1).strip().encode()
    model = _model_in(body[:_MODEL_HEAD_BYTES], delimiter)
    if model is None and len(body) > _MODEL_HEAD_BYTES:
        model = _model_in(body[-_MODEL_TAIL_BYTES:], delimiter)
    return model


def _model_in(window: bytes, delimiter: bytes) -> str | None:
    start = window.find(delimiter)
    for _ in range(_FORM_PARTS_MAX):
        if start < 0:
            break
        start += len(delimiter)
        end = window.find(b"\r\n" + delimiter, start)
        head_end = window.find(b"\r\n\r\n", start, start + _PART_HEAD_BYTES_MAX)
        if 0 <= head_end < end and _IS_MODEL.search(window, start, head_end):
            return _form_text(window[head_end + 4 : end])
        start = end if end < 0 else end + 2
    return None


def _form_text(value: bytes) -> str | None:
    if len(value) > _MODEL_BYTES_MAX:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
