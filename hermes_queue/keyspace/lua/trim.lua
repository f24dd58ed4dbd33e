-- @include time, trim/groups, trim/delete
-- Delete entries, with their bodies, that every counted consumer group has acknowledged or filters out.
--
-- @key results, trimmed = results:trimmed, place = results:trim_place, unread_bytes = results:bytes
--      trimmed: time of the last trim; place: the entry after which the next one goes on
-- @arg prefix
-- @arg interval_s  minimum time between two trims of the fleet
-- @arg retention_s  how long entries are kept, unless there are as many as `soft_max_groups` or
--      `soft_max_bytes`: results that everybody has read must not hold back new work
-- @arg abandoned_after_s  after which a consumer group that is not durable and reads nothing no longer
--      counts
-- @arg most  entries per call
-- @arg soft_max_groups, soft_max_bytes
-- @arg only_name  '1' = delete nothing, only name the entries that may be deleted
-- @arg kept[]  ids of entries to skip, which do not count towards `most`
-- @arg these[]  ids of the only entries to delete; none = whatever may be deleted
-- @answer entries  number deleted or named, -1 if no trim was due
-- @answer abandoned  names of groups that have read and no longer count
-- @answer named  ids of the entries named
-- Without a counted group nothing is deleted: results wait for their first reader.
local last = tonumber(redis.call('GET', trimmed) or '0')
if now >= last and now - last < tonumber(interval_s) then return {-1, {}, {}} end
-- A full Redis refuses a script if its first writing command needs room, although this script makes
-- room. After a first DEL, Redis accepts the others.
redis.call('DEL', trimmed)
redis.call('SET', trimmed, stamp(now), 'EX', 86400)
if redis.call('EXISTS', results) == 0 then return {0, {}, {}} end
local counted, abandoned = readers()
if #counted == 0 then return {0, abandoned, {}} end

local keep_s = tonumber(retention_s)
if redis.call('XLEN', results) >= tonumber(soft_max_groups)
  or tonumber(redis.call('GET', unread_bytes) or '0') >= tonumber(soft_max_bytes) then keep_s = 0 end
local oldest = 1000 * (now - keep_s)

-- Whether the entry may be deleted, and whether none behind it may: it is young, or waits for a reader of
-- everything.
local function judged(id, fields)
  if tonumber(string.match(id, '^(%d+)-')) > oldest then return false, true end
  local free = true
  for _, reader in ipairs(counted) do
    if awaits(reader, id, fields) then
      if not reader.filter then return false, true end
      free = false
    end
  end
  return free, false
end

local entries, ids, limit = 0, {}, tonumber(most)
for _, id in ipairs(these) do
  for _, entry in ipairs(redis.call('XRANGE', results, id, id)) do
    local fields = named(entry[2])
    if judged(id, fields) then
      delete(id, fields)
      entries = entries + 1
    end
  end
end
if #these > 0 then
  if entries == limit then redis.call('DEL', trimmed) end  -- there may be more
  return {entries, abandoned, {}}
end

local passed_over = {}
for _, id in ipairs(kept) do passed_over[id] = true end
local from = redis.call('GET', place) or '-'
local page = redis.call('XRANGE', results, from, '+', 'COUNT', limit + #kept)
local ended = #page < limit + #kept
for _, entry in ipairs(page) do
  local id, fields = entry[1], named(entry[2])
  local free, last = judged(id, fields)
  ended = ended or last
  if last or entries == limit then break end
  if free and not passed_over[id] then
    if only_name == '1' then ids[#ids + 1] = id else delete(id, fields) end
    entries = entries + 1
  end
  from = '(' .. id
end
-- What readers hold is passed once a round, a page at a time; the round ends where all is held.
if ended then redis.call('DEL', place) else redis.call('SET', place, from, 'EX', 86400) end
if entries == limit and only_name ~= '1' then redis.call('DEL', trimmed) end
return {entries, abandoned, ids}
