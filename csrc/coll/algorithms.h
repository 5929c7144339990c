#pragma once

#include "coll/collective.h"
#include "coll/plan.h"

namespace ringcomm {

// One function an algorithm: the plan of spec.rank. Each is described where it is defined, with its
// hops (messages that have to follow each other) and the bytes a rank sends. select.h chooses.
//
// They expect a spec whose ranks, root and sizes are in order; callers check their input. For
// a world of one they plan no messages.

Plan ringAllReduce(const CollectiveSpec& spec);
Plan directAllReduce(const CollectiveSpec& spec);
Plan scatterGatherAllReduce(const CollectiveSpec& spec);

Plan directReduce(const CollectiveSpec& spec);
Plan chainReduce(const CollectiveSpec& spec);

Plan chainBroadcast(const CollectiveSpec& spec);
Plan treeBroadcast(const CollectiveSpec& spec);

Plan ringAllGather(const CollectiveSpec& spec);
Plan directAllGather(const CollectiveSpec& spec);

Plan directGather(const CollectiveSpec& spec);
Plan directScatter(const CollectiveSpec& spec);

Plan directReduceScatter(const CollectiveSpec& spec);
Plan ringReduceScatter(const CollectiveSpec& spec);

Plan directAllToAll(const CollectiveSpec& spec);

Plan directBarrier(const CollectiveSpec& spec);
Plan disseminationBarrier(const CollectiveSpec& spec);

}  // namespace ringcomm
