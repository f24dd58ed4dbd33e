-- Entries of keys that a producer could write by hand: a malformed one must not break the scripts for
-- all others.
local JOB_ID = '^%w[%w%._:/%-]*%.[%w_:/%-]+%.%d+$'  -- <run>.<digest>.<sample>
local LANE = '^%w[%w%._:/%-]*$'

-- Fields of a hash by name; empty if the key is of another type.
local function fields_of(key, ...)
  local values, found = redis.pcall('HMGET', key, ...), {}
  if values.err then return found end
  for i = 1, select('#', ...) do found[(select(i, ...))] = values[i] or nil end
  return found
end

-- Number of a group's samples, from its fields `planned` and `size`. Redis is busy with nothing else while a script
-- looks at each.
local SAMPLES_MOST = 8192
local function samples_of(g) return math.min(tonumber(g.planned or g.size or '') or 0, SAMPLES_MOST) end

-- A member of a group, see publish/group.lua; nil if it is none.
local function member_of(raw)
  local whole, m = pcall(cjson.decode, raw or '')
  if not whole or type(m) ~= 'table' or type(m[1]) ~= 'string' then return nil end
  local bytes = tonumber(m[3])
  if not bytes or not (bytes >= 0 and bytes < 9e15) then return nil end
  m[3], m[4] = string.format('%.0f', bytes), tonumber(m[4]) or ''
  m[5], m[6] = tonumber(m[5]) and tostring(m[5]) or '', tonumber(m[6]) or 0
  return m
end

-- Whether this is the id of a job, and the fields are valid.
local function is_job(id, lane, attempt, epoch)
  return #id <= 256 and string.find(id, JOB_ID) and lane and #lane <= 300 and string.find(lane, LANE)
    and attempt and string.find(attempt, '^%d+$') and #attempt < 16
    and epoch and string.find(epoch, '^%d+$') and #epoch < 16 and true or false
end
