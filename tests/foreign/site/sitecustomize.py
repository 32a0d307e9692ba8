"""What stands in the place of data while examples of NVFlare run; on PYTHONPATH of that run only.

Drawn images have other checksums than CIFAR-10's, and digits come from the folder `MNIST`, not
from the network. NVFlare 2.9.0 lacks `simple_logging`, which the examples of its repository import.
"""

import contextlib
import os
import shutil

with contextlib.suppress(ImportError):
    import nvflare.collab

    vars(nvflare.collab).setdefault("simple_logging", lambda *_: None)
with contextlib.suppress(ImportError):
    import torchvision.datasets.cifar

    torchvision.datasets.cifar.check_integrity = lambda path, md5=None: os.path.isfile(path)
    torchvision.datasets.MNIST.download = lambda self: shutil.copytree(
        os.environ["MNIST"], self.raw_folder, dirs_exist_ok=True
    )
