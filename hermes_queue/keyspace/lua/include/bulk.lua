-- Commands on many members of a sorted set at once, in pieces: Lua unpacks only some thousand values.
local PIECE = 1000

-- Calls `with` with every piece of a list.
local function in_pieces(list, with)
  for first = 1, #list, PIECE do
    with({unpack(list, first, math.min(first + PIECE - 1, #list))})
  end
end

-- Add members under one score. Includes `healing`.
local function add_all(key, score, members)
  in_pieces(members, function(some)
    local flat = {}
    for i, member in ipairs(some) do flat[2 * i - 1], flat[2 * i] = score, member end
    healing('ZADD', key, unpack(flat))
  end)
end
