-- Delete what every consumer group that counts has acknowledged, entries and bodies at once.
--
-- KEYS[1] results  KEYS[2] results:trimmed (when)  KEYS[3] results:bytes
-- ARGV[1] prefix  ARGV[2] least seconds between two trims of the fleet
-- ARGV[3] seconds that entries are kept, unless there are as many as ARGV[6] groups or ARGV[7]
-- bytes: what everybody has read must not hold back new work  ARGV[4] seconds after which a consumer
-- group that is not durable and reads nothing counts no more  ARGV[5] most entries per call
-- ARGV[8] '1' = delete nothing, name what may be  ARGV[9] the newest id to delete, '' = any
-- ARGV[10...] ids of entries to pass over, which do not count among ARGV[5]
-- Returns {entries deleted or named, or -1 when it was not due; {names of groups that count no
-- more}; {ids of the entries named}}.
-- Without any group that counts nothing is deleted: results wait for their first reader.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if now >= last and now - last < tonumber(ARGV[2]) then return {-1, {}, {}} end
-- A Redis that is full refuses scripts that begin with a command which needs room, and it is
-- this one that makes room: after a first DEL it lets the others pass.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], string.format('%.6f', now), 'EX', 86400)
if redis.call('EXISTS', KEYS[1]) == 0 then return {0, {}, {}} end

local function named(flat)
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local function before(a, b)  -- stream ids
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  if am ~= bm then return tonumber(am) < tonumber(bm) end
  return tonumber(as) < tonumber(bs)
end

local out = {0, {}, {}}
local reads, holds = {}, {}
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = named(flat)
  local counts = true
  if redis.call('HGET', ARGV[1] .. 'consumer-group:' .. group['name'], 'durable') == '0' then
    counts = false
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], group['name'])) do
      if named(consumer)['idle'] < 1000 * tonumber(ARGV[4]) then counts = true end
    end
    if not counts then out[2][#out[2] + 1] = group['name'] end
  end
  if counts then
    reads[#reads + 1] = group['last-delivered-id']
    local pending = redis.call('XPENDING', KEYS[1], group['name'])
    if pending[1] > 0 then holds[#holds + 1] = pending[2] end
  end
end
if #reads == 0 then return out end

local function delete(id, fields)
  for _, list in ipairs({fields['members'] or '[]', fields['extras'] or '[]'}) do
    local whole, names = pcall(cjson.decode, list)  -- an entry that is none of ours has no bodies
    for _, member in ipairs(whole and type(names) == 'table' and names or {}) do
      if type(member) == 'string' then redis.call('DEL', ARGV[1] .. 'body:' .. member) end
    end
  end
  redis.call('XDEL', KEYS[1], id)
  local bytes = fields['bytes'] or ''
  if string.find(bytes, '^%d+$') and #bytes < 16 then redis.call('DECRBY', KEYS[3], bytes) end
end

local kept, kept_count = {}, math.max(0, #ARGV - 9)
for i = 10, #ARGV do kept[ARGV[i]] = true end
local keep_s = tonumber(ARGV[3])
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[6])
  or tonumber(redis.call('GET', KEYS[3]) or '0') >= tonumber(ARGV[7]) then keep_s = 0 end
local oldest = 1000 * (now - keep_s)
local most = tonumber(ARGV[5])
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', most + kept_count)) do
  local id = entry[1]
  local done = tonumber(string.match(id, '^(%d+)-')) <= oldest
  for _, read in ipairs(reads) do done = done and not before(read, id) end
  for _, held in ipairs(holds) do done = done and before(id, held) end
  if ARGV[9] ~= '' then done = done and not before(ARGV[9], id) end
  if not done or out[1] == most then break end
  if not kept[id] then
    if ARGV[8] == '1' then
      out[3][#out[3] + 1] = id
    else
      delete(id, named(entry[2]))
    end
    out[1] = out[1] + 1
  end
end
if ARGV[8] ~= '1' and out[1] == most then redis.call('DEL', KEYS[2]) end  -- there may be more
return out
