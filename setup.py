"""Three rooms, one distribution: `cuda/` and `esimd/` install as `xpu_moe.cuda` and `xpu_moe.esimd`.

The packages are found, not listed, so that a new folder needs no edit here.
"""

from setuptools import find_packages, setup

ROOMS = {"xpu_moe": "xpu_moe", "xpu_moe.cuda": "cuda", "xpu_moe.esimd": "esimd"}

setup(
    packages=[
        name
        for package, folder in ROOMS.items()
        for name in (package, *(f"{package}.{sub}" for sub in find_packages(folder)))
    ],
    package_dir=ROOMS,
    package_data={
        "xpu_moe": ["**/*.cpp", "**/*.json", "**/*.jinja", "**/*.toml", "py.typed"],
        "xpu_moe.cuda": ["**/*.c", "**/*.cu", "**/*.cuh", "**/*.json"],
        "xpu_moe.esimd": ["**/*.c", "**/*.hpp", "**/*.cpp", "**/*.spv", "**/*.json"],
    },
)
