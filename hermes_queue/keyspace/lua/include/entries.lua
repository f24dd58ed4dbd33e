-- Entries of keys that a producer could write by hand: a malformed one must not break the scripts for
-- all others.
local JOB_ID = '^%w[%w%._:/%-]*%.[%w_:/%-]+%.%d+$'  -- <run>.<digest>.<sample>
local LANE = '^%w[%w%._:/%-]*$'

-- Fields of a hash by name; empty if the key is of another type.
local function fields_of(key, ...)
  local values, found = redis.pcall('HMGET', key, ...), {}
  if values.err then return found end
  for i, name in ipairs({...}) do found[name] = values[i] or nil end
  return found
end

-- Whether this is the id of a job, and the fields are valid.
local function is_job(id, lane, attempt, epoch)
  return #id <= 256 and string.find(id, JOB_ID) and lane and #lane <= 300 and string.find(lane, LANE)
    and attempt and string.find(attempt, '^%d+$') and #attempt < 16
    and epoch and string.find(epoch, '^%d+$') and #epoch < 16 and true or false
end
