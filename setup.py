"""Everything is in pyproject.toml, but for what it cannot say: test_self_*.py stays out of the wheel.

The tests that users run (test_*.py) ship with the package; the project's tests of its own parts stand beside
them and are of no use to a user. The sdist has both (MANIFEST.in), an editable install too.
"""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithoutSelfTests(build_py):
    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        return [found for found in modules if not found[1].startswith("test_self_")]  # found: package, module, file


setup(cmdclass={"build_py": BuildWithoutSelfTests})
