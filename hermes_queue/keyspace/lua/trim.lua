-- @include time, trim/groups
-- Delete entries, with their bodies, that every counted consumer group has acknowledged.
--
-- @key results, trimmed = results:trimmed, unread_bytes = results:bytes  trimmed: time of the last trim
-- @arg prefix
-- @arg interval_s  minimum time between two trims of the fleet
-- @arg retention_s  how long entries are kept, unless there are as many as `soft_max_groups` or
--      `soft_max_bytes`: results that everybody has read must not hold back new work
-- @arg abandoned_after_s  after which a consumer group that is not durable and reads nothing no longer
--      counts
-- @arg most  entries per call
-- @arg soft_max_groups, soft_max_bytes
-- @arg only_name  '1' = delete nothing, only name the entries that may be deleted
-- @arg newest  id of the newest entry to delete, '' = any
-- @arg kept[]  ids of entries to skip, which do not count towards `most`
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
local reads, holds, abandoned = read_by_all()
if #reads == 0 then return {0, abandoned, {}} end

local function delete(id, fields)
  for _, list in ipairs({fields['members'] or '[]', fields['extras'] or '[]'}) do
    local whole, names = pcall(cjson.decode, list)  -- a foreign entry has no bodies
    for _, member in ipairs(whole and type(names) == 'table' and names or {}) do
      if type(member) == 'string' then redis.call('DEL', prefix .. 'body:' .. member) end
    end
  end
  redis.call('XDEL', results, id)
  local bytes = fields['bytes'] or ''
  if string.find(bytes, '^%d+$') and #bytes < 16 then redis.call('DECRBY', unread_bytes, bytes) end
end

local passed_over = {}
for _, id in ipairs(kept) do passed_over[id] = true end
local keep_s = tonumber(retention_s)
if redis.call('XLEN', results) >= tonumber(soft_max_groups)
  or tonumber(redis.call('GET', unread_bytes) or '0') >= tonumber(soft_max_bytes) then keep_s = 0 end
local oldest = 1000 * (now - keep_s)
local entries, ids, limit = 0, {}, tonumber(most)
for _, entry in ipairs(redis.call('XRANGE', results, '-', '+', 'COUNT', limit + #kept)) do
  local id = entry[1]
  local done = tonumber(string.match(id, '^(%d+)-')) <= oldest
  for _, read in ipairs(reads) do done = done and not before(read, id) end
  for _, held in ipairs(holds) do done = done and before(id, held) end
  if newest ~= '' then done = done and not before(newest, id) end
  if not done or entries == limit then break end
  if not passed_over[id] then
    if only_name == '1' then ids[#ids + 1] = id else delete(id, named(entry[2])) end
    entries = entries + 1
  end
end
if only_name ~= '1' and entries == limit then redis.call('DEL', trimmed) end  -- there may be more
return {entries, abandoned, ids}
