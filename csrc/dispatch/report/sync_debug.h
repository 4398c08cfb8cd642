// Telling when the host waits for the device: torch.tpu.set_sync_debug_mode.
#pragma once

namespace torch_tpu::dispatch {

enum class SyncDebug { kSilent, kWarn, kError };

SyncDebug sync_debug() noexcept;
void set_sync_debug(SyncDebug what) noexcept;  // process-wide

// Before the host waits for the device to read something: warns or throws if that was asked for.
void note_sync(const char* what);

}  // namespace torch_tpu::dispatch
