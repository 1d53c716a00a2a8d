# find_package(attn) gives attn::attn, the shared library, which needs nothing else.
# find_package(attn COMPONENTS static) also gives attn::static, which needs OpenMP and hwloc.
include(CMakeFindDependencyMacro)
include(${CMAKE_CURRENT_LIST_DIR}/attn-targets.cmake)
if("static" IN_LIST attn_FIND_COMPONENTS)
  find_dependency(OpenMP COMPONENTS C)
  find_dependency(Threads)
  find_dependency(PkgConfig)
  pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
  include(${CMAKE_CURRENT_LIST_DIR}/attn-static-targets.cmake)
endif()
