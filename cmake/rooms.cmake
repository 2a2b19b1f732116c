# One static library per room, one set of flags for all of them.
find_program(REFIT_CCACHE ccache)
if(REFIT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these words ccache passes over every source that takes a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${REFIT_CCACHE}")
endif()
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

add_library(refit_flags INTERFACE)
target_compile_options(refit_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<BOOL:${REFIT_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  -ffp-contract=off -fno-fast-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's own collector costs a sixth of the time of a large source; 0.15 GB more memory a compiler is the price.
  target_compile_options(refit_flags INTERFACE --param=ggc-min-expand=1000 --param=ggc-min-heapsize=4000000 -fpch-preprocess)
endif()
target_include_directories(refit_flags INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_link_libraries(refit_flags INTERFACE Threads::Threads)
if(REFIT_SANITIZE)
  target_compile_options(refit_flags INTERFACE -fsanitize=${REFIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(refit_flags INTERFACE -fsanitize=${REFIT_SANITIZE})
  if(REFIT_SANITIZE MATCHES "thread")
    # GCC warns that TSan does not model fences (the shm mover has one towards other processes); races stay errors.
    target_compile_options(refit_flags INTERFACE -Wno-tsan)
  endif()
endif()

# What stands outside the rooms (tests, command line) has no hot loop: it compiles lightly, under sanitizers not optimised
# at all, which shortens that build.
if(REFIT_SANITIZE)
  set(REFIT_OUTER_FLAGS -O0 -g0)
else()
  set(REFIT_OUTER_FLAGS $<$<NOT:$<CONFIG:Debug>>:-O1 -g0>)
endif()

set(REFIT_LIGHT_ROOMS store wire files coordinator agent sync observe facade)

# refit_room(NAME SOURCES … [ROOMS core …] [VENDOR target …])
# ROOMS are public (their front headers appear in ours); VENDOR libraries stay inside this room's sources.
function(refit_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;ROOMS;VENDOR" ${ARGN})
  add_library(refit_${name} STATIC ${ARG_SOURCES})
  add_library(refit::${name} ALIAS refit_${name})
  # Rooms without a hot loop compile lighter.
  if(name IN_LIST REFIT_LIGHT_ROOMS)
    target_compile_options(refit_${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
  endif()
  list(TRANSFORM ARG_ROOMS PREPEND "refit_")
  target_link_libraries(refit_${name} PUBLIC refit_flags ${ARG_ROOMS} PRIVATE ${ARG_VENDOR})
endfunction()

# refit_test(NAME SOURCES … ROOMS … [VENDOR …] [LABELS fast|sim|procs …] [TIMEOUT s])
# Without LABELS a test belongs to the fast set.
function(refit_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;ROOMS;VENDOR;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(REFIT_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  list(TRANSFORM ARG_ROOMS PREPEND "refit_")
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE refit_flags ${ARG_ROOMS} ${ARG_VENDOR} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/tests")
  target_compile_options(${name} PRIVATE ${REFIT_OUTER_FLAGS})  # the rooms under test keep their own flags
  target_precompile_headers(${name} REUSE_FROM refit_test_headers)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(REFIT_SANITIZE STREQUAL "thread")
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/support/tsan.supp")
  endif()
  if("procs" IN_LIST ARG_LABELS)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)  # deadlines are asserted: no neighbour
  endif()
endfunction()
