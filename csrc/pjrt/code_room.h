// Room for the code of programs. Each program of XLA:CPU maps pages of its own, and Linux bounds
// the mappings of a process (vm.max_map_count); past the bound XLA and the C++ runtime crash. So
// the mappings are counted now and then, and the caches asked to let programs go in time.
// Thread-safe.
#pragma once

#include <cstdint>

namespace torch_tpu::pjrt {

struct Mappings {
  int64_t used = 0;
  int64_t limit = 0;  // 0: there is none here
};
Mappings count_mappings();

// Lets some programs go; false when there is none left. Called without locks of the caches, by the
// thread that is about to load a program.
using RoomMaker = bool (*)();
void set_room_maker(RoomMaker maker);

// To be called before a program is compiled or loaded. Throws an Error when there is no room.
void need_code_room();

// For tests: another bound than the system's; 0 takes that again.
void set_mapping_limit(int64_t limit);

}  // namespace torch_tpu::pjrt
