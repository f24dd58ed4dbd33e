-- Fields of a hash by name; a missing field is nil.
local function hash(key, ...)
  local values, found = redis.call('HMGET', key, ...), {}
  for i, name in ipairs({...}) do found[name] = values[i] or nil end
  return found
end
