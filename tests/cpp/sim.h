#pragma once

#include "coll_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

// Runs the plans of all ranks against each other in memory: as the engine would, but in a random
// order, in random amounts of bytes, and with as little room in the streams as a test likes.
namespace ringcomm::sim {

using Bytes = std::vector<uint8_t>;

constexpr uint64_t kUnbounded = std::numeric_limits<uint64_t>::max();

// The arithmetic of a run. `finish` must not be the identity, so that doing it twice shows.
struct Element {
  size_t size;
  void (*accumulate)(uint8_t* dst, const uint8_t* src);  // dst = dst op src
  void (*finish)(uint8_t* dst);
};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t bound) { return next() % bound; }
  // From 1 to most: often the ends, so that both crumbs and whole pieces are moved.
  uint64_t amount(uint64_t most) {
    switch (below(4)) {
      case 0:
        return 1;
      case 1:
        return 1 + below(most);
      default:
        return most;
    }
  }

 private:
  uint64_t state_;
};

// One rank's part in one operation. buffers[kScratch] is made by the simulation.
struct RankOp {
  Plan plan;
  std::vector<Bytes> buffers;
};

class Simulation {
 public:
  // At most `capacity` bytes are under way from one rank to another; the start of a message that
  // the receiver has not seen yet counts as one.
  Simulation(int world, Element element, uint64_t seed, uint64_t capacity)
      : world_(world),
        element_(element),
        seed_(seed),
        capacity_(capacity),
        random_(seed),
        localsInOrder_(random_.below(2) == 0),
        links_(static_cast<size_t>(world) * static_cast<size_t>(world)),
        held_(static_cast<size_t>(world), false) {}

  // Queues an operation behind those that are there, on the same streams; returns its index.
  size_t add(std::vector<RankOp> ranks) {
    const size_t op = ops_.size();
    ops_.emplace_back();
    for (int rank = 0; rank < world_; ++rank) {
      RankOp& rankOp = ranks[static_cast<size_t>(rank)];
      // Whatever is read before it is written shows.
      rankOp.buffers[kScratch].assign(rankOp.plan.scratchBytes, 0xa5);
      std::vector<uint64_t> sizes;
      for (const Bytes& buffer : rankOp.buffers) sizes.push_back(buffer.size());
      const std::string error = checkPlan(rankOp.plan, rank, world_, sizes, element_.size);
      if (!error.empty()) fail(error);
      ops_[op].push_back({std::move(rankOp), {}, 0});
      ops_[op].back().steps.resize(ops_[op].back().op.plan.steps.size());
      queueSteps(op, rank);
    }
    return op;
  }

  // A held rank does nothing, as if it had not come yet.
  void hold(int rank, bool held) { held_[static_cast<size_t>(rank)] = held; }

  // Runs until nothing moves any more. Returns what is wrong, with the seed, or nothing if all is
  // well; that not all is done is wrong unless a rank is held.
  std::string run() {
    while (failure_.empty() && (round(false) || round(true))) {
    }
    const bool waiting = std::find(held_.begin(), held_.end(), true) != held_.end();
    if (failure_.empty() && !waiting) checkEnd();
    return failure_;
  }

  bool complete(size_t op, int rank) const {
    const OpState& state = ops_[op][static_cast<size_t>(rank)];
    return state.prefix == state.steps.size();
  }

  const Bytes& buffer(size_t op, int rank, uint16_t index) const {
    return ops_[op][static_cast<size_t>(rank)].op.buffers[index];
  }

 private:
  struct StepState {
    uint64_t done = 0;  // kRecvReduce: reduced, the rest of what arrived is in `arrived`
    bool started = false;
    bool complete = false;
    Bytes arrived;
  };
  struct OpState {
    RankOp op;
    std::vector<StepState> steps;
    size_t prefix = 0;  // leading steps that are complete
  };
  struct Header {
    size_t op;
    uint64_t bytes;
  };
  struct Link {
    std::deque<Header> headers;
    std::deque<uint8_t> bytes;
  };
  struct Item {
    size_t op;
    size_t step;
  };
  // What advances by itself: the sends to a peer, the receives from one, a local step.
  struct Actor {
    int rank;
    StepKind kind;  // kSend, kRecv (also for kRecvReduce) or kCopy (for both local ones)
    int peer;
    std::vector<Item> queue;
    size_t head = 0;
    uint64_t speed = 1;  // one in so many of its turns is taken
  };

  void queueSteps(size_t op, int rank) {
    const std::vector<Step>& steps = state(op, rank).op.plan.steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepKind kind = isReceive(steps[i])                  ? StepKind::kRecv
                            : steps[i].kind == StepKind::kReduce ? StepKind::kCopy
                                                                 : steps[i].kind;
      auto actor = actors_.end();
      if (kind != StepKind::kCopy || localsInOrder_) {
        actor = std::find_if(actors_.begin(), actors_.end(), [&](const Actor& a) {
          return a.rank == rank && a.kind == kind && a.peer == steps[i].peer;
        });
      }
      if (actor == actors_.end()) {
        const uint64_t speeds[] = {1, 2, 10};
        actors_.push_back({rank, kind, steps[i].peer, {}, 0, speeds[random_.below(3)]});
        actor = actors_.end() - 1;
      }
      actor->queue.push_back({op, i});
    }
  }

  // Gives every actor its turn, beginning anywhere. Returns whether anything moved.
  bool round(bool everybody) {
    bool moved = false;
    const size_t start = actors_.empty() ? 0 : random_.below(actors_.size());
    for (size_t i = 0; i < actors_.size() && failure_.empty(); ++i) {
      Actor& actor = actors_[(start + i) % actors_.size()];
      if (actor.head == actor.queue.size() || held_[static_cast<size_t>(actor.rank)]) continue;
      if (!everybody && random_.below(actor.speed) != 0) continue;
      moved = advance(actor) || moved;
    }
    return moved;
  }

  bool advance(Actor& actor) {
    const Item item = actor.queue[actor.head];
    const Step& step = state(item.op, actor.rank).op.plan.steps[item.step];
    if (!eligible(item, actor.rank)) return false;
    bool moved = false;
    switch (step.kind) {
      case StepKind::kSend:
        moved = send(item, actor.rank);
        break;
      case StepKind::kRecv:
      case StepKind::kRecvReduce:
        moved = receive(item, actor.rank);
        break;
      case StepKind::kReduce:
      case StepKind::kCopy:
        moved = local(item, actor.rank);
        break;
    }
    if (stepState(item, actor.rank).complete) ++actor.head;
    return moved;
  }

  bool eligible(const Item& item, int rank) {
    const OpState& op = state(item.op, rank);
    return op.prefix >= op.op.plan.steps[item.step].after;
  }

  // How many of a send's bytes may be on their way by now.
  uint64_t sendable(const Item& item, int rank) {
    const OpState& op = state(item.op, rank);
    const Step& step = op.op.plan.steps[item.step];
    if (op.prefix < step.after) return 0;
    return step.follow < 0 ? step.bytes : op.steps[static_cast<size_t>(step.follow)].done;
  }

  bool send(const Item& item, int rank) {
    const Step& step = state(item.op, rank).op.plan.steps[item.step];
    StepState& sending = stepState(item, rank);
    Link& link = linkOf(rank, step.peer);
    const uint64_t ready = sendable(item, rank) - sending.done;
    if (step.bytes > 0 && ready == 0) return false;
    uint64_t used = link.bytes.size() + link.headers.size();
    if (used >= capacity_) return false;
    if (!sending.started) {
      link.headers.push_back({item.op, step.bytes});
      sending.started = true;
      ++used;
    }
    const uint64_t most = std::min(ready, capacity_ - used);
    if (most > 0) {
      const uint64_t bytes = random_.amount(most);
      const uint8_t* src = at(item.op, rank, step.src) + sending.done;
      link.bytes.insert(link.bytes.end(), src, src + bytes);
      sending.done += bytes;
    }
    if (sending.done == step.bytes) completeStep(item, rank);
    return true;
  }

  bool receive(const Item& item, int rank) {
    const Step& step = state(item.op, rank).op.plan.steps[item.step];
    StepState& receiving = stepState(item, rank);
    Link& link = linkOf(step.peer, rank);
    bool moved = false;
    if (!receiving.started) {
      if (link.headers.empty()) return false;
      const Header header = link.headers.front();
      if (header.op != item.op || header.bytes != step.bytes) {
        fail(name(item, rank) + " expects " + std::to_string(step.bytes) +
             " bytes, but operation " + std::to_string(header.op) + " sent " +
             std::to_string(header.bytes));
        return false;
      }
      link.headers.pop_front();
      receiving.started = moved = true;
    }
    const uint64_t missing = step.bytes - receiving.done - receiving.arrived.size();
    const uint64_t most = std::min<uint64_t>(missing, link.bytes.size());
    const uint64_t bytes = most > 0 ? random_.amount(most) : 0;
    const auto end = link.bytes.begin() + static_cast<std::ptrdiff_t>(bytes);
    receiving.arrived.insert(receiving.arrived.end(), link.bytes.begin(), end);
    link.bytes.erase(link.bytes.begin(), end);
    moved = moved || bytes > 0;
    moved = takeArrived(item, rank, bytes > 0) || moved;
    if (receiving.done == step.bytes) completeStep(item, rank);
    return moved;
  }

  // Puts what has arrived in place: kRecv at once, kRecvReduce by whole elements, now or later.
  bool takeArrived(const Item& item, int rank, bool mayWait) {
    const Step& step = state(item.op, rank).op.plan.steps[item.step];
    StepState& receiving = stepState(item, rank);
    uint8_t* dst = at(item.op, rank, step.dst) + receiving.done;
    uint64_t bytes = receiving.arrived.size();
    if (step.kind == StepKind::kRecvReduce) {
      const uint64_t elements = bytes / element_.size;
      if (elements == 0 || (mayWait && random_.below(3) == 0)) return false;
      bytes = random_.amount(elements) * element_.size;
    }
    if (bytes == 0) return false;
    checkHazard(item, rank, step.dst, receiving.done, bytes);
    const uint8_t* src = receiving.arrived.data();
    if (step.kind == StepKind::kRecv) {
      std::memcpy(dst, src, bytes);
    } else {
      const uint8_t* own = at(item.op, rank, step.src) + receiving.done;
      for (uint64_t i = 0; i < bytes; i += element_.size) {
        std::memmove(dst + i, own + i, element_.size);
        element_.accumulate(dst + i, src + i);
        if (step.finish) element_.finish(dst + i);
      }
    }
    receiving.done += bytes;
    receiving.arrived.erase(receiving.arrived.begin(),
                            receiving.arrived.begin() + static_cast<std::ptrdiff_t>(bytes));
    return true;
  }

  bool local(const Item& item, int rank) {
    const Step& step = state(item.op, rank).op.plan.steps[item.step];
    checkHazard(item, rank, step.dst, 0, step.bytes);
    const uint8_t* src = at(item.op, rank, step.src);
    Bytes result(src, src + step.bytes);
    for (uint32_t part = 1; part < step.parts; ++part) {
      const uint8_t* other = src + part * step.bytes;
      for (uint64_t i = 0; i < step.bytes; i += element_.size) {
        element_.accumulate(result.data() + i, other + i);
      }
    }
    for (uint64_t i = 0; step.finish && i < step.bytes; i += element_.size) {
      element_.finish(result.data() + i);
    }
    std::copy(result.begin(), result.end(), at(item.op, rank, step.dst));
    stepState(item, rank).done = step.bytes;
    completeStep(item, rank);
    return true;
  }

  // Nothing may write what a send is free to read but has not read yet.
  void checkHazard(const Item& item, int rank, const Region& dst, uint64_t from, uint64_t bytes) {
    const OpState& op = state(item.op, rank);
    const uint64_t first = dst.offset + from;
    for (size_t i = 0; i < op.steps.size(); ++i) {
      const Step& step = op.op.plan.steps[i];
      if (step.kind != StepKind::kSend || op.steps[i].complete) continue;
      if (step.src.buffer != dst.buffer) continue;
      const uint64_t unsent = step.src.offset + op.steps[i].done;
      const uint64_t limit = step.src.offset + sendable({item.op, i}, rank);
      if (first < limit && unsent < first + bytes) {
        fail(name(item, rank) + " writes over what step " + std::to_string(i) + " has to send");
      }
    }
  }

  void completeStep(const Item& item, int rank) {
    OpState& op = state(item.op, rank);
    op.steps[item.step].complete = true;
    while (op.prefix < op.steps.size() && op.steps[op.prefix].complete) ++op.prefix;
  }

  void checkEnd() {
    for (const Actor& actor : actors_) {
      if (actor.head < actor.queue.size()) {
        return fail("deadlock: " + name(actor.queue[actor.head], actor.rank) + " cannot go on");
      }
    }
    for (const Link& link : links_) {
      if (!link.headers.empty() || !link.bytes.empty()) return fail("a message is left over");
    }
  }

  OpState& state(size_t op, int rank) { return ops_[op][static_cast<size_t>(rank)]; }
  StepState& stepState(const Item& item, int rank) { return state(item.op, rank).steps[item.step]; }
  Link& linkOf(int from, int to) { return links_[static_cast<size_t>(from * world_ + to)]; }
  uint8_t* at(size_t op, int rank, const Region& region) {
    return state(op, rank).op.buffers[region.buffer].data() + region.offset;
  }
  static std::string name(const Item& item, int rank) {
    return "operation " + std::to_string(item.op) + " rank " + std::to_string(rank) + " step " +
           std::to_string(item.step);
  }
  void fail(const std::string& what) {
    if (!failure_.empty()) return;
    failure_ = what + " (seed " + std::to_string(seed_) + ", world " + std::to_string(world_) +
               ", capacity " + std::to_string(capacity_) + ")";
  }

  int world_;
  Element element_;
  uint64_t seed_;
  uint64_t capacity_;
  Random random_;
  const bool localsInOrder_;  // a rank's local steps, one after another: both ways are allowed
  std::vector<std::vector<OpState>> ops_;  // by operation, by rank
  std::vector<Link> links_;                // by sender, by receiver
  std::vector<Actor> actors_;
  std::vector<bool> held_;
  std::string failure_;
};

}  // namespace ringcomm::sim
