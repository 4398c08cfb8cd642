# The test programs, one per folder. Included by the CMakeLists.txt above.
# Makes a test program of tests/cpp/<folder>, if there are tests, linked with the rest of the arguments.
function(add_cpp_tests folder)
  file(GLOB_RECURSE TEST_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cpp/${folder}/*_test.cpp)
  if(NOT TEST_SOURCES)
    return()
  endif()
  add_executable(${folder}_test ${TEST_SOURCES})
  target_link_libraries(${folder}_test PRIVATE ${ARGN} GTest::gtest_main)
  add_test(NAME cpp.${folder} COMMAND ${folder}_test WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(cpp.${folder} PROPERTIES TIMEOUT 300)
  if(PJRT_CPU_WHEEL) # else the caller may name a plugin
    set_property(TEST cpp.${folder} PROPERTY ENVIRONMENT TORCH_TPU_TEST_PLUGIN=${PJRT_CPU_WHEEL}/xla_cpu_pjrt.so)
  endif()
endfunction()

foreach(folder base pjrt stablehlo)
  add_cpp_tests(${folder} torch_tpu_core)
endforeach()
foreach(folder ops trace cache device dispatch distributed)
  add_cpp_tests(${folder} ${BACKEND})
endforeach()
# Of the bindings what needs no torch; it gets an interpreter of its own.
if(Python_Development.Embed_FOUND)
  add_cpp_tests(bindings torch_tpu_torch torch_tpu_core Python::Python)
  target_sources(bindings_test PRIVATE csrc/bindings/python_line.cpp)
  target_compile_definitions(bindings_test PRIVATE TORCH_TPU_TEST_PYTHON="${Python_EXECUTABLE}")
endif()
