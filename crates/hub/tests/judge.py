"""What `huggingface_hub` makes of a cache. Prints the folder of the model.

    judge.py offline|online|pull REPO
"""

import os
import sys

what, repo = sys.argv[1:]
if what == "offline":
    os.environ["HF_HUB_OFFLINE"] = "1"

from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download

FILES = ["config.json", "model.safetensors"]

if what == "pull":
    folder = snapshot_download(repo, allow_patterns=FILES)
else:
    paths = [hf_hub_download(repo, file) for file in FILES]
    folder = os.path.dirname(paths[0])
    assert all(os.path.dirname(path) == folder for path in paths), paths

cache = scan_cache_dir()
assert not cache.warnings, cache.warnings
found = {r.repo_id: r for r in cache.repos}[repo]
revision = next(iter(found.revisions))
assert revision.refs == {"main"}, revision.refs
assert {f.file_name for f in revision.files} == set(FILES), revision.files
assert str(revision.snapshot_path) == os.path.realpath(folder), (revision.snapshot_path, folder)
print(folder)
