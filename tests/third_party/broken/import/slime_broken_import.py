"""Does not import: the package below is not among the plugin's dependencies."""

import a_package_that_nobody_has  # noqa: F401
