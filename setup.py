"""Everything is in pyproject.toml, but for what it cannot say: the project's tests of its own stay out of the wheel.

The tests that users run (test_*.py) ship with the package; the project's tests of its own parts (test_self_*.py) stand
beside them and are of no use to a user, nor is the mutation score, which says how good they are. The sdist has both
(MANIFEST.in), an editable install too.
"""

from setuptools import setup
from setuptools.command.build_py import build_py

MUTATION = "kvcore.stateful.mutation"


class BuildWithoutSelfTests(build_py):
    def find_package_modules(self, package, package_dir):
        modules = [] if package == MUTATION else super().find_package_modules(package, package_dir)
        return [found for found in modules if not found[1].startswith("test_self_")]  # found: package, module, file

    def find_data_files(self, package, src_dir):
        return [] if package == MUTATION else super().find_data_files(package, src_dir)


setup(cmdclass={"build_py": BuildWithoutSelfTests})
