"""Where this environment keeps NIXL's C library, for the transport of that name."""

import glob
import importlib.util
import os


def name_library() -> None:
    """Names the wheel's libnixl_capi.so in REFIT_NIXL_LIBRARY, unless the user has. Nothing is imported or loaded."""
    if os.environ.get("REFIT_NIXL_LIBRARY"):
        return
    for package in ("nixl_cu12", "nixl_cu13"):
        found = importlib.util.find_spec(package)
        for place in (found.submodule_search_locations or ()) if found else ():
            for library in glob.glob(os.path.join(os.path.dirname(place), f".{package}.mesonpy.libs", "libnixl_capi.so")):
                os.environ["REFIT_NIXL_LIBRARY"] = library
                return
