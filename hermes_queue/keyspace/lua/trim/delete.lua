-- Deletes an entry of the stream with its bodies.

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
