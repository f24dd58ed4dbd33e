-- @include hash
-- Groups of a paced run that its trainer will never train, though it has not said so: dropped,
-- filtered out or cancelled ones, and those that it acknowledged before it died.

-- Milliseconds and sequence number of a stream entry's id.
local function parts(entry)
  local ms, seq = string.match(entry, '^(%d+)%-(%d+)$')
  return tonumber(ms), tonumber(seq)
end

-- Name -> id of the last entry delivered to it, of each consumer group of the stream.
local function places()
  local found, listed = {}, redis.pcall('XINFO', 'GROUPS', results)
  for _, flat in ipairs(listed.err and {} or listed) do
    local facts = {}
    for i = 1, #flat, 2 do facts[flat[i]] = flat[i + 1] end
    found[facts['name']] = facts['last-delivered-id']
  end
  return found
end

local function is_acknowledged(entry, reader, place)
  local ms, seq = parts(entry)
  local to_ms, to_seq = parts(place or '')
  if not ms or not to_ms or ms > to_ms or ms == to_ms and seq > to_seq then return false end
  return #redis.call('XPENDING', results, reader, entry, entry, 1) == 0
end

-- `readers`: the trainer's consumer groups, of which each skips what is meant for the others.
local function is_over(group_id, entry, readers, place_of)
  if entry == '' then
    -- It closed without an entry in the stream, or an older version published it.
    local g = fields_of(prefix .. 'group:' .. group_id, 'size', 'closed')
    return not g.size or g.closed
  end
  for _, reader in ipairs(readers) do
    if not is_acknowledged(entry, reader, place_of[reader]) then return false end
  end
  return #readers > 0
end

-- Count some groups of the hash off, others with each call.
local function count_over(r)
  local readers, place_of = cjson.decode(r.ahead_of or '[]'), places()
  local page = redis.call('HSCAN', ahead, r.pace_cursor or '0', 'COUNT', most)
  redis.call('HSET', run, 'pace_cursor', page[1], 'pace_looked', stamp(now))
  for i = 1, #page[2], 2 do
    if is_over(page[2][i], page[2][i + 1], readers, place_of) then redis.call('HDEL', ahead, page[2][i]) end
  end
end
