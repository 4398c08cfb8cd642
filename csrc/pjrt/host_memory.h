// The memory of XLA:CPU is the process's own: every run takes its results and temporaries from
// malloc and gives them back.
#pragma once

namespace torch_tpu::pjrt {

// Lets malloc keep what is freed. By default it returns large pieces to the system, and the next
// step pays for every page again: 1000 page faults and a fifth of the time of a small training
// step. Leaves it alone where the user has tuned malloc by its variables. For the whole process.
void keep_freed_host_memory();

// Gives it back to the system after all.
void release_freed_host_memory() noexcept;

}  // namespace torch_tpu::pjrt
