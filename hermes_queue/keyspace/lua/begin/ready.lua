-- @lazy ready_one
-- Which group of a leaf begins next: one of the first, if what its slots are made of is at hand where the owner runs.
-- Members of groups that have begun stand before them, and are never overtaken.
local GROUPS = 8  -- that are looked at
local AHEAD_S = 60  -- of places in the leaf: less than a step of priority
local OLDER_S = 10  -- by which a job that is overtaken ages, so that this happens to it a few times at most

-- Number of members of a group: its next neighbour in the leaf comes after them.
local function members_of(text)
  local planned = tonumber(text or '') or 1
  return planned >= 1 and planned <= 8192 and math.floor(planned) or 1
end

-- A way to a job of such a group that may begin in place of that of `way`, or nil.
local function search(way)
  local key = jobs_of(way.leaf)
  local latest = tonumber(redis.call('ZSCORE', key, way.id)) + AHEAD_S
  local place = members_of(redis.call('HGET', prefix .. 'group:' .. way.group_id, 'planned'))
  for _ = 2, GROUPS do
    local id, score = unpack(redis.call('ZRANGE', key, place, place, 'WITHSCORES'))
    if not id or tonumber(score) > latest then return nil end
    local needs, planned = unpack(redis.call('HMGET', prefix .. 'group:' .. (group_of(id) or ''), 'needs', 'planned'))
    if needs and #needs == 8 and is_ready({needs = needs}) then
      local other = {}
      for name, value in pairs(way) do other[name] = value end
      other.id, other.is_last = id, false
      if is_right(other) and opens(other) then
        redis.call('ZINCRBY', key, -OLDER_S, way.id)
        return other
      end
    end
    place = place + members_of(planned)
  end
end

-- The same. What cannot be read is overtaken by nobody.
local function ready_one(way)
  local whole, found = pcall(search, way)
  return whole and found
end
