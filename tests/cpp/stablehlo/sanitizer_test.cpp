// Leaks of the XLA:CPU compiler itself, which the leak checker would report as ours. Read by the
// sanitizer's runtime, which finds the function by name.
#define EXPORT __attribute__((visibility("default")))

extern "C" EXPORT const char* __lsan_default_suppressions();
extern "C" EXPORT const char* __lsan_default_suppressions() {
  return "leak:xla::detail::IndexingMapAttrStorage::construct\n";
}
