#pragma once

#include "coll/collective.h"
#include "engine/op.h"

#include <vector>

namespace ringcomm {

// What a collective is to its planner, given the buffers of the operation, or of a share of it.
CollectiveSpec specOf(const OpDesc& desc, const std::vector<Buffer>& buffers, int rank, int world);

}  // namespace ringcomm
