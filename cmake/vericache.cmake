# Compile flags, the dependency look-ups and the two helpers every folder uses.
#
#   vericache_library(NAME kernels SOURCES a.cc b.cc DEPS vericache_base PRIVATE_DEPS ...)
#   vericache_test(NAME rope_test SOURCES rope_test.cc DEPS vericache_kernels LABELS unit)

# The numeric contract (docs/exactness.md): no fused multiply-add unless written, no fast-math.
# It holds for every target, tests included; tests/fp_contract_test.cc fails without it.
add_compile_options(-ffp-contract=off -fno-fast-math -fno-math-errno -fno-trapping-math)
add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
add_compile_options($<$<CONFIG:Debug>:-D_GLIBCXX_ASSERTIONS>)

set(VERICACHE_APT_HINT "run scripts/install_deps.sh (the list is scripts/packages.txt)")
find_package(absl QUIET)
if(NOT absl_FOUND)
  message(FATAL_ERROR "Abseil is missing (libabsl-dev): ${VERICACHE_APT_HINT}")
endif()
find_package(Threads REQUIRED)

function(vericache_library)
  cmake_parse_arguments(A "" "NAME" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(vericache_${A_NAME} STATIC ${A_SOURCES})
  target_include_directories(vericache_${A_NAME} PUBLIC ${PROJECT_SOURCE_DIR}/src
                                                        ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(vericache_${A_NAME} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS})
endfunction()

if(VERICACHE_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest is missing (libgtest-dev): ${VERICACHE_APT_HINT}, "
                        "or configure with -DVERICACHE_BUILD_TESTS=OFF")
  endif()
endif()

function(vericache_test)
  if(NOT VERICACHE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  add_test(NAME ${A_NAME} COMMAND ${A_NAME} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${A_NAME} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT})
endfunction()
