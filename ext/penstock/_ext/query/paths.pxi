# Part of evaluator.pyx: which JSON paths are asked for, and the tree of them. Not on the path of a message.

cdef class Paths:
    """Slots of the paths, counted; the tree is made anew when one has come or gone."""

    cdef PathTree tree
    cdef dict slots             # path: [slot, how many ask for it]
    cdef list free_slots
    cdef list names             # the bytes the edges borrow from
    cdef bint is_current

    def __cinit__(self):
        self.slots, self.free_slots, self.names = {}, [], []
        self.build()

    def __dealloc__(self):
        free(self.tree.nodes)
        free(self.tree.edges)
        free(self.tree.slots)

    def want(self, tuple path):
        """The slot of a path; give it back with `release`."""
        entry = self.slots.get(path)
        if entry is None:
            slot = self.free_slots.pop() if self.free_slots else len(self.slots)
            entry = self.slots[path] = [slot, 0]
            self.is_current = False
        entry[1] += 1
        return entry[0]

    def release(self, tuple path):
        entry = self.slots[path]
        entry[1] -= 1
        if entry[1] == 0:
            self.free_slots.append(entry[0])
            del self.slots[path]
            self.is_current = False

    cdef int build(self) except -1:
        cdef dict root = {}
        cdef list order
        cdef uint32_t edges = 0, at = 0, node = 0
        cdef PathTree tree
        memset(&tree, 0, sizeof(PathTree))
        for path, (slot, _) in self.slots.items():
            here = root
            for step in path:
                here = here.setdefault((type(step) is int, step), {})
            here[None] = slot
        order = [root]
        for children in order:      # grows while it is walked: breadth first
            below = sorted((step for step in children if step is not None), key=edge_order)
            edges += <uint32_t> len(below)
            order.extend(children[step] for step in below)
        tree.message = self.tree.message    # goes on: the memos count by it too
        tree.nodes = <PathNode*> calloc(len(order), sizeof(PathNode))
        tree.edges = <PathEdge*> calloc(edges + 1, sizeof(PathEdge))
        tree.slots = <JsonSlot*> calloc(len(self.slots) + len(self.free_slots) + 1, sizeof(JsonSlot))
        self.names = []
        if tree.nodes == NULL or tree.edges == NULL or tree.slots == NULL:
            free(tree.nodes)
            free(tree.edges)
            free(tree.slots)
            raise MemoryError()
        for children in order:
            tree.nodes[node].slot = children.get(None, NO_PATH)
            at = self.put_edges(&tree, tree.nodes + node, children, at)
            node += 1
        free(self.tree.nodes)
        free(self.tree.edges)
        free(self.tree.slots)
        self.tree = tree
        self.is_current = True
        return 0

    # The nodes were numbered in the order of the edges that lead to them, the root being 0.
    cdef uint32_t put_edges(self, PathTree* tree, PathNode* node, dict children, uint32_t at) except? 0:
        cdef PathEdge* edge
        cdef bytes name
        node.members = node.elements = at
        for step in sorted((step for step in children if step is not None), key=edge_order):
            edge = tree.edges + at
            at += 1
            edge.node = at
            if step[0]:
                edge.index = step[1]
                node.element_count += 1
                node.from_end = node.from_end or edge.index < 0
            else:
                name = step[1].encode()
                self.names.append(name)
                edge.name, edge.size = <const uint8_t*> PyBytes_AS_STRING(name), <uint32_t> PyBytes_GET_SIZE(name)
                node.member_count += 1
                node.elements = at
        return at


cdef class Memos:
    """Numbers of the expressions that are worth remembering, counted; 0 is none. They are known by their `repr`: 0.0
    and -0.0 are equal and not the same."""

    cdef Memo* memos
    cdef uint32_t capacity
    cdef dict numbers           # repr of an expression: its number
    cdef list free_numbers

    def __cinit__(self):
        self.numbers, self.free_numbers = {}, []
        self.grow()

    def __dealloc__(self):
        free(self.memos)

    cdef int grow(self) except -1:
        cdef uint32_t capacity = 2 * self.capacity + 64
        cdef Memo* memos = <Memo*> realloc(self.memos, capacity * sizeof(Memo))
        if memos == NULL:
            raise MemoryError()
        memset(memos + self.capacity, 0, (capacity - self.capacity) * sizeof(Memo))
        self.memos, self.capacity = memos, capacity
        return 0

    def want(self, str expression):
        """One more place where it is computed; give it back with `release`."""
        number = self.numbers.get(expression)
        if number is None:
            number = self.free_numbers.pop() if self.free_numbers else len(self.numbers) + 1
            if number >= self.capacity:
                self.grow()
            self.numbers[expression] = number
            self.memos[<uint32_t> number].seen = 0
        self.memos[<uint32_t> number].uses += 1
        return number

    def release(self, str expression):
        cdef uint32_t number = self.numbers[expression]
        self.memos[number].uses -= 1
        if self.memos[number].uses == 0:
            self.free_numbers.append(number)
            del self.numbers[expression]


# Members first, by size and bytes as find_member searches them, then elements.
def edge_order(step):
    if step[0]:
        return 1, step[1], b""
    name = step[1].encode()
    return 0, len(name), name
