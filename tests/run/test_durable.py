"""What was written outlives a loss of power: content is on the disk before it gets its name, and the name before anyone relies on it."""

import os
import stat
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import sartor
from sartor.run.files import write_private


class Disk:
    """What would be left after a loss of power: content and names that were brought to the disk since they last changed."""

    def __init__(self, patch, root):
        self.root, self.content, self.names, self.early = root, {}, set(), []
        sync = os.fsync

        def noted(descriptor):
            sync(descriptor)
            about = os.fstat(descriptor)
            if stat.S_ISDIR(about.st_mode):
                self.names |= {(about.st_ino, entry.name, entry.inode()) for entry in os.scandir(descriptor)}
            else:
                self.content[about.st_ino] = about.st_size, about.st_mtime_ns

        patch.setattr(os, "fsync", noted)
        for name in ("replace", "link"):
            patch.setattr(os, name, self._named(getattr(os, name)))

    def _named(self, give):
        def noted(source, place, **more):
            self.early += self.lost_content()
            return give(source, place, **more)

        return noted

    def lost_content(self):
        """Files with something in them that is not on the disk."""
        files = [path for path in Path(self.root).rglob("*") if path.is_file() and path.stat().st_size]
        return [path.name for path in files if self.content.get(path.stat().st_ino) != (path.stat().st_size, path.stat().st_mtime_ns)]

    def lost_names(self):
        """Names of such files, and of folders, that are not on the disk."""
        paths = [path for path in Path(self.root).rglob("*") if path.is_dir() or path.stat().st_size]
        return [path.name for path in paths if (path.parent.stat().st_ino, path.name, path.stat().st_ino) not in self.names]


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("new", [True, False], ids=["new", "in place of another"])
def test_a_private_file_is_on_the_disk_when_it_is_written(tmp_path, monkeypatch, new, links):
    """Also where the file system has no links, by which a new file is otherwise given its name."""
    if not links:

        def refused(*_, **__):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "account"
    if not new:
        path.write_bytes(b"before")
    with monkeypatch.context() as patch:
        disk = Disk(patch, tmp_path)
        if not new:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        write_private(path, b"after", new=new)
        assert path.read_bytes() == b"after"
        assert disk.early == []
        assert disk.lost_content() == []
        assert disk.lost_names() == []


def test_a_checkpoint_is_on_the_disk_before_it_takes_the_place_of_the_one_before(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(40, 3, generator=generator), torch.randint(0, 2, (40,), generator=generator))
    budgets = sartor.Budgets.from_groups([(1.0, 20), (4.0, 20)], delta=1e-3)
    plan = sartor.plan(budgets, steps=4, batch=10, accountant="rdp")
    folder, seen = tmp_path / "checkpoint", []

    def look(progress):
        if folder.exists():
            seen.append((disk.lost_content(), disk.lost_names()))

    with monkeypatch.context() as patch:
        disk = Disk(patch, folder)
        sartor.fit(
            torch.nn.Linear(3, 2),
            data,
            budgets,
            plan,
            lr=0.1,
            seed=1,
            progress=False,
            checkpoints=sartor.Checkpoints(folder, every=1),
            callbacks=[look],
        )
        assert disk.names  # or nothing was looked at
        assert disk.early == []
        assert seen
        assert all(lost == ([], []) for lost in seen)
