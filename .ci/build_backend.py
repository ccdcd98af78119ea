"""setuptools as the build backend, with a list of files for the source distribution that is not at the top level.

setuptools has no setting for it; without the list the sdist holds test files but nothing they import.
"""

from setuptools.build_meta import *  # noqa: F403
from setuptools.command.egg_info import manifest_maker

manifest_maker.template = ".ci/MANIFEST.in"
