// Where the planner cuts simulated op streams: loops must fall into step, whatever their length.
#include "csrc/trace/planner.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/hash.h"

namespace torch_tpu::trace {
namespace {

using Stream = std::vector<uint64_t>;

// Cuts as Fused Eager does, with a hard cut (a host read) wherever the stream has a zero.
std::vector<Stream> pieces_of(const Stream& stream, const PlannerLimits& limits = {}) {
  Planner planner(limits);
  std::vector<Stream> pieces;
  Stream pending;
  const auto take = [&](size_t count) {
    const auto end = pending.begin() + static_cast<std::ptrdiff_t>(count);
    pieces.emplace_back(pending.begin(), end);
    pending.erase(pending.begin(), end);
    planner.cut(count);
  };
  for (uint64_t op : stream) {
    if (op == 0) {
      if (!pending.empty()) take(pending.size());
      continue;
    }
    while (planner.full()) take(planner.choose());
    planner.add(op, 100);
    pending.push_back(op);
    EXPECT_EQ(planner.pending(), pending.size());
  }
  if (!pending.empty()) take(pending.size());
  return pieces;
}

Stream random_ops(size_t count, uint64_t seed) {
  Stream out;
  for (size_t i = 0; i < count; ++i) out.push_back(base::hash_combine(seed, i % 97) | 1);
  std::mt19937_64 shuffle(seed);
  for (uint64_t& op : out) op ^= (shuffle() % 5) << 3;
  return out;
}

Stream repeated(const Stream& body, size_t times, bool read) {
  Stream out;
  for (size_t i = 0; i < times; ++i) {
    out.insert(out.end(), body.begin(), body.end());
    if (read) out.push_back(0);
  }
  return out;
}

size_t distinct(const std::vector<Stream>& pieces) {
  return std::set<Stream>(pieces.begin(), pieces.end()).size();
}

TEST(Planner, NothingIsLostOrReordered) {
  const Stream stream = random_ops(5000, 1);
  Stream joined;
  for (const Stream& piece : pieces_of(stream)) {
    EXPECT_LE(piece.size(), 1024u);
    joined.insert(joined.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(joined, stream);
}

TEST(Planner, AStepThatEndsWithAReadIsOneProgram) {
  for (size_t length : {3u, 109u, 689u, 1000u}) {
    const Stream body = random_ops(length, length);
    const auto pieces = pieces_of(repeated(body, 10, /*read=*/true));
    EXPECT_EQ(distinct(pieces), 1u) << length;
    EXPECT_EQ(pieces.size(), 10u) << length;
  }
}

TEST(Planner, ALoopWithoutReadsFallsIntoStep) {
  for (size_t length : {166u, 689u, 1103u}) {
    const Stream body = random_ops(length, length);
    const auto pieces = pieces_of(repeated(body, 30, /*read=*/false));
    // A head, the turn itself (in one piece or a few), a tail.
    EXPECT_LE(distinct(pieces), 8u) << length;
    std::map<Stream, int> counts;
    for (const Stream& piece : pieces) ++counts[piece];
    size_t in_step = 0;
    for (const auto& [piece, count] : counts) in_step += count >= 25 ? piece.size() : 0;
    EXPECT_EQ(in_step, length);
  }
}

TEST(Planner, LoopsOfAnyLengthShareTheirPrograms) {
  const Stream body = random_ops(150, 7);
  std::set<Stream> seen;
  for (size_t times : {3u, 17u, 5u, 40u, 9u}) {
    for (const Stream& piece : pieces_of(repeated(body, times, false))) seen.insert(piece);
  }
  EXPECT_LE(seen.size(), 6u);
  const size_t before = seen.size();
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    const size_t times = 3 + random() % 60;
    for (const Stream& piece : pieces_of(repeated(body, times, false))) seen.insert(piece);
  }
  EXPECT_EQ(seen.size(), before);
}

TEST(Planner, ShortTurnsAreGathered) {
  const auto pieces = pieces_of(repeated({11, 12, 13}, 1000, false));
  EXPECT_LE(distinct(pieces), 4u);
  std::map<Stream, int> counts;
  for (const Stream& piece : pieces) ++counts[piece];
  size_t longest = 0;
  for (const auto& [piece, count] : counts) {
    if (count > 5) longest = piece.size();
  }
  EXPECT_GE(longest, 64u);
}

TEST(Planner, ThePlaceDoesNotDependOnWhatCameBefore) {
  const Stream body = random_ops(300, 3);
  Stream shifted = random_ops(57, 4);
  const Stream loop = repeated(body, 20, false);
  shifted.insert(shifted.end(), loop.begin(), loop.end());
  std::set<Stream> plain;
  for (const Stream& piece : pieces_of(loop)) plain.insert(piece);
  size_t shared = 0;
  for (const Stream& piece : pieces_of(shifted)) shared += plain.contains(piece) ? 1 : 0;
  EXPECT_GE(shared, 17u);
}

TEST(Planner, MemoryCutsEverything) {
  PlannerLimits limits;
  limits.max_bytes = 1000;
  for (const Stream& piece : pieces_of(random_ops(100, 5), limits)) EXPECT_LE(piece.size(), 11u);
}

TEST(Planner, TheLimitsHold) {
  PlannerLimits limits;
  limits.min_nodes = 10;
  limits.max_nodes = 50;
  const auto pieces = pieces_of(random_ops(3000, 6), limits);
  for (size_t i = 0; i + 1 < pieces.size(); ++i) EXPECT_LE(pieces[i].size(), 50u);
  EXPECT_GT(pieces.size(), 59u);
}

}  // namespace
}  // namespace torch_tpu::trace
