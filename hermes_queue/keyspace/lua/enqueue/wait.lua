-- Where the jobs of a call wait.

-- Set what the run's part of the slots depends on.
local function share(known)
  known.team = known.team or team
  if team ~= '' then redis.call('HSETNX', run, 'team', team) end
  if weight ~= '' then redis.call('HSET', run, 'weight', weight) end
  if max_running ~= '' then redis.call('HSET', run, 'max_running', max_running) end
  team = known.team
end

local leaves, names = {}, {}

-- The leaf of a job, in which it will wait. Members of a group stand together, in the order of the call; before others
-- if the group has begun, of which an earlier call had some.
local function leaf_for(job, position)
  local class = known_group(job.group).begun and STARTED
  local env = job.group.env
  names[job.lane .. '|' .. env] = names[job.lane .. '|' .. env] or name_of_leaf(job.lane, team, run_id, env)
  local leaf = names[job.lane .. '|' .. env]
  local flat = leaves[leaf] or {}
  leaves[leaf], flat[#flat + 1], flat[#flat + 2] = flat, place_of(job.priority, class, position), job.id
  return leaf
end

local function wait_all()
  for leaf, flat in pairs(leaves) do put_in(leaf, flat) end
end
