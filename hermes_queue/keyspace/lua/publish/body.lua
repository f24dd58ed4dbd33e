-- The record's body: an argument or, if that is empty, stored under `staged` before.

local is_staged = body == ''
local body_bytes = is_staged and redis.call('STRLEN', staged) or #body
local is_missing = body_bytes == 0

local function put_body(key)
  if not is_staged then redis.call('SET', key, body) return end
  redis.call('RENAME', staged, key)
  redis.call('PERSIST', key)
end

-- The answer that nothing, or no group, took the body.
local function without_body(verdict)
  if is_staged then redis.call('DEL', staged) end
  return {verdict, ''}
end
