# GPU code of a room: nvcc turns its .cu into one file for all architectures, which the room's device_image.cpp takes in as
# bytes. No CUDA language is enabled: CMake 3.25 knows no C++20 for nvcc, and nothing here is linked against CUDA.
set(REFIT_CUDA AUTO CACHE STRING "GPU code: ON, OFF, or AUTO (where nvcc is found and no sanitizer runs)")
set(REFIT_CUDA_ARCHS 80 90 100 CACHE STRING "Compute capabilities to build for, as far as nvcc knows them")

set(REFIT_CUDA_GENCODE "")
if(REFIT_CUDA STREQUAL "AUTO" AND REFIT_SANITIZE)
  set(REFIT_CUDA_WANTED OFF)
else()
  set(REFIT_CUDA_WANTED ${REFIT_CUDA})
endif()
if(REFIT_CUDA_WANTED)
  find_program(REFIT_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(REFIT_NVCC)
    execute_process(COMMAND "${REFIT_NVCC}" --list-gpu-code OUTPUT_VARIABLE known OUTPUT_STRIP_TRAILING_WHITESPACE)
    foreach(arch IN LISTS REFIT_CUDA_ARCHS)
      if(known MATCHES "sm_${arch}(\n|$)")
        list(APPEND REFIT_CUDA_GENCODE -gencode "arch=compute_${arch},code=sm_${arch}")
        set(newest ${arch})
      endif()
    endforeach()
    if(newest)  # newer devices translate this one
      list(APPEND REFIT_CUDA_GENCODE -gencode "arch=compute_${newest},code=compute_${newest}")
    endif()
  elseif(REFIT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "REFIT_CUDA=ON needs nvcc on PATH or in /usr/local/cuda/bin")
  endif()
endif()
if(REFIT_CUDA_GENCODE)
  message(STATUS "GPU code: ${REFIT_NVCC}, compute capabilities ${REFIT_CUDA_ARCHS}")
else()
  message(STATUS "GPU code: none (REFIT_CUDA=${REFIT_CUDA}; no nvcc, or a sanitizer)")
endif()

# refit_device_code(ROOM CU IMAGE): CU → fatbin, taken in by IMAGE (device_image.cpp). Contraction off and no fast math:
# the CPU must get the same bits. Warnings are errors where the house's build says so: a build with whatever nvcc a machine
# has (tests/gpu) must not fail of a new one.
function(refit_device_code room cu image)
  set_source_files_properties("${image}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(NOT REFIT_CUDA_GENCODE)
    return()
  endif()
  get_filename_component(source "${cu}" ABSOLUTE)
  set(strict "")
  if(REFIT_WERROR)
    set(strict -Werror all-warnings)
  endif()
  set(fatbin "${CMAKE_CURRENT_BINARY_DIR}/${room}.fatbin")
  add_custom_command(OUTPUT "${fatbin}"
    COMMAND "${REFIT_NVCC}" -std=c++20 --expt-relaxed-constexpr -fmad=false -O3 -diag-suppress=186 ${strict}
      ${REFIT_CUDA_GENCODE} --threads 2 "-I${REFIT_SOURCE_ROOT}/src" -MD -MF "${fatbin}.d" -fatbin -o "${fatbin}" "${source}"
    DEPENDS "${source}" DEPFILE "${fatbin}.d" COMMENT "GPU code of ${room}" VERBATIM)
  set_source_files_properties("${image}" PROPERTIES
    COMPILE_DEFINITIONS "REFIT_DEVICE_CODE_FILE=\"${fatbin}\"" OBJECT_DEPENDS "${fatbin}")
endfunction()
