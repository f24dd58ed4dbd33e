-- Members of groups, in keys that a producer could write.

-- Number of a group's samples, from its fields `planned` and `size`. Redis is busy with nothing else while a script
-- looks at each.
local SAMPLES_MOST = 8192
local function samples_of(g) return math.min(tonumber(g.planned or g.size or '') or 0, SAMPLES_MOST) end

-- A number of a member in this range, else nil: what is added up has to stay one that Redis takes.
local MEMBER_MOST = 1e11
local function a_sum(value)
  value = tonumber(value)
  return value and value >= 0 and value < MEMBER_MOST and value or nil
end

-- A member of a group, see publish/group.lua; nil if it is none.
local function member_of(raw)
  local whole, m = pcall(cjson.decode, raw or '')
  if not whole or type(m) ~= 'table' or type(m[1]) ~= 'string' then return nil end
  local bytes = a_sum(m[3])
  if not bytes then return nil end
  m[3], m[4] = string.format('%.0f', bytes), tonumber(m[4]) or ''
  m[5], m[6] = tonumber(m[5]) and tostring(m[5]) or '', a_sum(m[6]) or 0
  return m
end
