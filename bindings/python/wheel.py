"""Packs a wheel of a library that cargo built: `python wheel.py LIBRARY FOLDER`.

Releases are packed by maturin. This is for tests, which take the library as the workspace's tests built it:
maturin would build it again, with other features of its dependencies.
"""

import base64
import hashlib
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
# What pyo3's feature `abi3-py310` promises.
PYTHON = "cp310-abi3"


def metadata(project):
    """The headers that installers read."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
    ]
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    for extra, needs in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {need}; extra == "{extra}"' for need in needs]
    lines.append("Description-Content-Type: text/markdown")
    return "\n".join(lines) + "\n\n" + (HERE / project["readme"]).read_text()


def main(library, folder):
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    name = f"{project['name']}-{project['version']}"
    tag = f"{PYTHON}-{platform}"
    package = HERE / "lapidary"
    sources = [path for path in sorted(package.rglob("*")) if path.suffix in (".py", ".pyi", ".typed")]
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    files["lapidary/py.typed"] = b""
    ending = ".pyd" if platform.startswith("win") else ".abi3.so"
    files[f"lapidary/_native{ending}"] = Path(library).read_bytes()
    about = f"{name}.dist-info"
    files[f"{about}/METADATA"] = metadata(project).encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: lapidary\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{about}/WHEEL"] = wheel.encode()
    record = ""
    for path, data in files.items():
        sum = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={sum},{len(data)}\n"
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    out = Path(folder) / f"{name}-{tag}.whl"
    out.parent.mkdir(parents=True, exist_ok=True)
    # A weak compression is enough for what is installed once.
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    print(out)


main(*sys.argv[1:])
