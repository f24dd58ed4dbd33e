-- Keys that whoever may enqueue can write by hand: one that is not as our scripts write it must not
-- stop what they do for all others.
local JOB_ID = '^%w[%w%._:/%-]*%.[%w_:/%-]+%.%d+$'  -- <run>.<digest>.<sample>
local LANE = '^%w[%w%._:/%-]*$'

-- Fields of a hash by their names; none when the key holds something else.
local function fields_of(key, ...)
  local values, found = redis.pcall('HMGET', key, ...), {}
  if values.err then return found end
  for i = 1, select('#', ...) do found[(select(i, ...))] = values[i] or nil end
  return found
end

-- Whether this is the id of a job, and these are its fields.
local function is_job(id, lane, attempt, epoch)
  return #id <= 256 and string.find(id, JOB_ID) and lane and #lane <= 300 and string.find(lane, LANE)
    and attempt and string.find(attempt, '^%d+$') and #attempt < 16
    and epoch and string.find(epoch, '^%d+$') and #epoch < 16 and true or false
end
