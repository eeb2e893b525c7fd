# quintet_library(NAME SOURCES ... DEPENDS ...): a floor of the house as the static library quintet_NAME.
# DEPENDS lists floors by their short names or imported targets (with ::). With OBJECT all of it is linked, whatever
# stands before or behind it.
function(quintet_library name)
  cmake_parse_arguments(ARG "OBJECT" "" "SOURCES;DEPENDS" ${ARGN})
  if(ARG_OBJECT)
    add_library(quintet_${name} OBJECT ${ARG_SOURCES})
  else()
    add_library(quintet_${name} STATIC ${ARG_SOURCES})
  endif()
  target_link_libraries(quintet_${name} PRIVATE quintet_options)
  target_include_directories(quintet_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  foreach(dependency IN LISTS ARG_DEPENDS)
    if(TARGET quintet_${dependency} OR NOT dependency MATCHES "::")
      target_link_libraries(quintet_${name} PUBLIC quintet_${dependency})
    else()
      target_link_libraries(quintet_${name} PUBLIC ${dependency})
    endif()
  endforeach()
endfunction()

# quintet_test(NAME SOURCES ... DEPENDS ... CUDA ...): one executable, test_NAME, of Catch2 cases. Each case carries the
# tag [quick] or [full], which becomes its ctest label. CUDA is the guise of the CUDA device; without_cuda if not given.
function(quintet_test name)
  cmake_parse_arguments(ARG "" "CUDA" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_CUDA)
    set(ARG_CUDA without_cuda)
  endif()
  add_executable(test_${name} ${ARG_SOURCES})
  target_link_libraries(test_${name} PRIVATE quintet_options quintet_test_main)
  target_precompile_headers(test_${name} REUSE_FROM quintet_test_main)
  foreach(dependency IN LISTS ARG_DEPENDS ARG_CUDA)
    target_link_libraries(test_${name} PRIVATE quintet_${dependency})
  endforeach()
  foreach(tier quick full)
    catch_discover_tests(test_${name} TEST_SPEC "[${tier}]" TEST_PREFIX "${name}:" TEST_LIST ${name}_${tier}_cases
      PROPERTIES LABELS ${tier})
  endforeach()
endfunction()
