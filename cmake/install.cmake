# What `cmake --install` puts on a machine: the public headers, one shared library that exports refit::api and nothing else, the
# command, and what find_package(Refit) reads. Vendor libraries stay inside; no header of theirs is needed.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

file(WRITE "${CMAKE_BINARY_DIR}/install/empty.cpp" "")
file(WRITE "${CMAKE_BINARY_DIR}/install/refit.map"
  "{ global: extern \"C++\" { refit::api::*; \"typeinfo for refit::api::*\"; \"typeinfo name for refit::api::*\"; \"vtable for refit::api::*\"; }; local: *; };\n")
add_library(refit_shared SHARED "${CMAKE_BINARY_DIR}/install/empty.cpp")
add_library(Refit::Refit ALIAS refit_shared)
set_target_properties(refit_shared PROPERTIES OUTPUT_NAME refit EXPORT_NAME Refit LINK_DEPENDS "${CMAKE_BINARY_DIR}/install/refit.map"
  VERSION "${PROJECT_VERSION}" SOVERSION "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}" LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/install")
target_link_libraries(refit_shared PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,refit_facade>")
target_link_options(refit_shared PRIVATE "-Wl,--version-script=${CMAKE_BINARY_DIR}/install/refit.map" -Wl,--no-undefined)
target_compile_features(refit_shared INTERFACE cxx_std_20)
target_include_directories(refit_shared INTERFACE "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")

set(refit_package "${CMAKE_INSTALL_LIBDIR}/cmake/Refit")
install(TARGETS refit_shared EXPORT RefitTargets LIBRARY COMPONENT cpp)
install(TARGETS refit COMPONENT cli)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/include/refit" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT cpp)
install(EXPORT RefitTargets NAMESPACE Refit:: DESTINATION "${refit_package}" COMPONENT cpp)
file(WRITE "${CMAKE_BINARY_DIR}/install/RefitConfig.cmake" "include(\"\${CMAKE_CURRENT_LIST_DIR}/RefitTargets.cmake\")\n")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/install/RefitConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/install/RefitConfig.cmake" "${CMAKE_BINARY_DIR}/install/RefitConfigVersion.cmake"
  DESTINATION "${refit_package}" COMPONENT cpp)
